"""Wrong images and wrong arguments give an error that names what was passed and what is expected."""

import pytest
import torch

from tests.model.helpers import create, images


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(1, 2, 32, 32), ValueError, r"expected images of shape \(B, 3, H, W\), got \(1, 2, 32, 32\)"),
        (torch.zeros(1, 32, 32, 3), ValueError, r"expected images of shape \(B, 3, H, W\), got \(1, 32, 32, 3\)"),
        (torch.zeros(3, 32, 32), ValueError, r"expected images of shape \(B, 3, H, W\), got \(3, 32, 32\)"),
        (torch.zeros(1, 3, 32), ValueError, r"\(1, 3, 32\)"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), TypeError, r"floating-point images, got torch.uint8.*normalise"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.long), TypeError, r"floating-point images, got torch.int64"),
        (torch.zeros(1, 3, 0, 32), ValueError, r"at least one pixel, got \(1, 3, 0, 32\)"),
        (torch.zeros(1, 3, 32, 0), ValueError, r"at least one pixel, got \(1, 3, 32, 0\)"),
    ],
)
@pytest.mark.parametrize("method", ["forward", "forward_features", "forward_intermediates"])
def test_wrong_images(method, x, error, message):
    with pytest.raises(error, match=message):
        getattr(create(), method)(x)


def test_channels_expected_are_those_of_the_model():
    with pytest.raises(ValueError, match=r"\(B, 1, H, W\), got \(2, 3, 32, 32\)"):
        create(in_chans=1)(images(32))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"attention": "reformer"},
            ValueError,
            "one of laplacian, ablation, .* or a callable, got 'reformer'",
        ),
        ({"attention_args": {"grids": 7}}, TypeError, "grids"),
        ({"attention_args": {"kernel": "cauchy"}}, ValueError, "kernel must be one of"),
        ({"depths": (1, 1)}, ValueError, "one number (a|per) stage"),
        ({"num_heads": (1, 2, 4, 5, 6)}, ValueError, "one number (a|per) stage"),
        ({"num_heads": (1, 2, 4, 7)}, ValueError, "multiple of num_heads, got dim=160, num_heads=7"),
        ({"global_pool": "max"}, ValueError, "global_pool must be 'avg' or '', got 'max'"),
        ({"global_pool": ""}, ValueError, "pass num_classes=0"),
        ({"drop_paths": 0.1}, TypeError, "drop_paths"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        create(**arguments)


def test_weights_that_are_not_published_are_not_promised():
    with pytest.raises(RuntimeError, match="No pretrained weights exist for laplacianformer_tiny"):
        create("laplacianformer_tiny", pretrained=True)


def test_a_failed_change_of_the_head_changes_nothing():
    model = create()
    with pytest.raises(ValueError, match="global_pool"):
        model.reset_classifier(10, "max")
    with pytest.raises(ValueError, match="num_classes=0"):
        model.reset_classifier(10, "")
    assert (model.num_classes, model.global_pool) == (1000, "avg")
    assert model(images(32)).shape == (2, 1000)
