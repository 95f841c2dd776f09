"""torchvision pads a batch of images to one size: the features of each are those that it has alone."""

import copy

import pytest
import torch
from torch import Tensor, nn

from laplacianformer.detection import mask_rcnn, retinanet
from laplacianformer.detection._backbone import padding_of

SIZES = [(60, 90), (75, 50), (64, 64)]


def pictures() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(3, *size, generator=generator) for size in SIZES]


def detector(kind: str) -> nn.Module:
    torch.manual_seed(0)
    build = {"mask_rcnn": mask_rcnn, "retinanet": retinanet}[kind]
    sizes = {"short_side": 96, "long_side": 160, "channels": 16}
    return build("laplacianformer_nano", num_classes=2, **sizes).eval()


def features(model: nn.Module, images: list[Tensor]) -> tuple[list[tuple[int, int]], list[Tensor]]:
    padded, _ = model.transform(images)
    return padded.image_sizes, list(model.backbone.maps(padded.tensors, padding_of(padded.tensors)).values())


@pytest.mark.parametrize("kind", ["mask_rcnn", "retinanet"])
def test_an_image_has_the_same_features_alone_and_in_a_batch(kind: str) -> None:
    model = detector(kind)
    with torch.inference_mode():
        sizes, together = features(model, pictures())
        assert len(set(sizes)) == 3, "the images must differ in size for this to show anything"
        for index, image in enumerate(pictures()):
            (size,), alone = features(model, [image])
            for found, one, stride in zip(together, alone, model.backbone.maps.strides, strict=True):
                height, width = (-(-length // stride) for length in size)
                inside = (slice(None), slice(height), slice(width))
                torch.testing.assert_close(found[index][inside], one[0][inside], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["mask_rcnn", "retinanet"])
@pytest.mark.slow
def test_the_whole_detector_sees_the_mask(kind: str) -> None:
    """Also a copy of it."""
    model = detector(kind)
    seen: list[Tensor | None] = []
    for one in (model, copy.deepcopy(model)):
        maps = one.backbone.maps
        original = maps.forward
        maps.forward = lambda images, mask=None, original=original: (seen.append(mask), original(images, mask))[1]
        with torch.inference_mode():
            one(pictures())
    assert all(mask is not None for mask in seen)
    assert torch.equal(seen[0], seen[1])
    sizes = model.transform(pictures())[0].image_sizes
    assert [int(mask.sum()) for mask in seen[0]] == [height * width for height, width in sizes]


def test_images_that_fill_the_batch_need_no_mask() -> None:
    model = detector("retinanet")
    padded, _ = model.transform([torch.rand(3, 96, 96), torch.rand(3, 96, 96)])
    assert padding_of(padded.tensors) is None
    assert padding_of(torch.rand(2, 3, 96, 96)) is None
