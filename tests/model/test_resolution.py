"""One model instance, any image size, cost that grows with the pixels."""

import pytest
import torch

from tests.model.helpers import PeakBytes, create, images

SIZES = [(1, 1), (1, 50), (7, 3), (32, 32), (33, 47), (100, 37), (96, 160), (225, 31), (32, 2048), (2048, 32)]


@pytest.fixture(scope="module", params=["laplacianformer_nano", "laplacianformer_tiny"])
def model(request):
    return create(request.param)


@pytest.mark.parametrize("size", SIZES)
def test_any_size_runs_and_every_map_has_the_rounded_up_size(model, size):
    with torch.no_grad():
        final, maps = model.forward_intermediates(images(*size, batch=1))
        assert torch.equal(final, model.forward_features(images(*size, batch=1)))
    assert final.isfinite().all()
    for map_, info in zip(maps, model.feature_info, strict=True):
        stride = info["reduction"]
        assert map_.shape[2:] == tuple(-(-length // stride) for length in size)
    torch.testing.assert_close(final, model.forward_features(images(*size, batch=1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (33, 47), (160, 40)])
def test_any_size_trains(model, size):
    model.train()
    model(images(*size)).square().sum().backward()
    model.eval()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    model.zero_grad()


def test_an_image_gives_the_same_output_whatever_came_before(model):
    with torch.no_grad():
        first = model(images(224, batch=1))
        for size in ((96, 160), (32, 32), (33, 200)):
            model(images(*size, batch=1))
        assert torch.equal(model(images(224, batch=1)), first)


def test_images_of_a_batch_do_not_affect_each_other(model):
    x = images(64, 80, batch=3)
    with torch.no_grad():
        together = model(x)
        alone = torch.cat([model(x[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_an_empty_batch_gives_empty_outputs(model):
    assert model(images(32, batch=0)).shape == (0, 1000)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    assert model(images(32, batch=0)).shape == (0, 1000)
    model.eval()
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())


def peak_of_backward(model, height, width=128):
    """Without gradients of the parameters, whose size does not depend on the resolution."""
    with PeakBytes(model.requires_grad_(False)) as record:
        model(images(height, width, batch=1).requires_grad_()).sum().backward()
    return record.peak


@pytest.mark.parametrize("train", [False, True])
def test_memory_grows_no_faster_than_the_pixels(train):
    model = create(depths=(1, 1, 1, 1)).train(train)
    small, middle, large = (peak_of_backward(model, height) for height in (128, 256, 512))
    assert middle <= 2.02 * small
    assert large <= 2.02 * middle


def test_memory_of_a_quadratic_layer_would_show():
    """The same measure, where every token is its own landmark and the kernel is stored."""
    model = create(depths=(1, 1, 1, 1), attention_args={"grid": None, "whitening": "instance"})
    assert peak_of_backward(model, 128, 32) > 3 * peak_of_backward(model, 64, 32)
