"""Scores against a plain confusion matrix; windows; images of any size."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from laplacianformer._util.errors import InputError
from laplacianformer.segmentation import Preparation, find_classes
from laplacianformer.segmentation._labels import IGNORED
from laplacianformer.segmentation._scores import PixelScores
from laplacianformer.segmentation._task import pixel_loss
from tests.segmentation import helpers

NAMES = ("a", "b", "c", "never annotated", "nowhere")


def test_scores_are_those_of_a_confusion_matrix() -> None:
    generator = np.random.default_rng(0)
    counted, confusion = PixelScores(NAMES, torch.device("cpu")), np.zeros((5, 5))
    for size in ((8, 12), (31, 7), (5, 5)):
        predicted, target = generator.integers(0, 4, size), generator.integers(0, 3, size)
        target[generator.random(size) < 0.3] = IGNORED
        counted.add(torch.from_numpy(predicted), torch.from_numpy(target))
        for row, column in zip(target[target != IGNORED], predicted[target != IGNORED], strict=True):
            confusion[row, column] += 1
    scores = counted.compute()
    diagonal = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - diagonal
    iou = [100 * hit / all_of if all_of else None for hit, all_of in zip(diagonal, union, strict=True)]
    assert scores.iou["never annotated"] == 0, "predicted wrongly"
    assert scores.iou["nowhere"] is None, "and not in the mean"
    assert [scores.iou[name] for name in NAMES[:4]] == pytest.approx(iou[:4], rel=1e-5)
    assert scores.mean_iou == pytest.approx(sum(iou[:4]) / 4, rel=1e-5)
    assert scores.pixel_accuracy == pytest.approx(100 * diagonal.sum() / confusion.sum(), rel=1e-5)


# ---- the loss ----


def test_the_loss_is_the_mean_over_pixels_that_count() -> None:
    logits = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    targets = torch.randint(0, 3, (2, 4, 5))
    targets[0, :2] = IGNORED
    kept = targets != IGNORED
    expected = F.cross_entropy(logits.permute(0, 2, 3, 1)[kept].float(), targets[kept])
    torch.testing.assert_close(pixel_loss(logits, targets.byte()), expected)


def test_a_crop_that_is_ignored_as_a_whole_gives_no_loss_and_no_gradient() -> None:
    model = helpers.small().train()
    targets = torch.full((2, 32, 32), IGNORED, dtype=torch.uint8)
    loss = pixel_loss(model(torch.randn(2, 3, 32, 32)), targets)
    loss.backward()
    assert loss.item() == 0
    assert all((parameter.grad == 0).all() for parameter in model.parameters() if parameter.grad is not None)


# ---- whole images and windows ----


class Brightness(nn.Module):
    """The class of a pixel is its red channel divided by 64: what a window shows does not depend on the window."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(images.shape[-2:]))
        return -((images[:, :1] * 255 + 0.5) / 64 - torch.arange(4)[None, :, None, None] - 0.5).square()


def plain(**keys: int) -> Preparation:
    return Preparation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), **keys)


@pytest.mark.parametrize(("size", "windows"), [((32, 48), 6), ((40, 33), 4), ((20, 70), 4), ((9, 11), 1)])
def test_windows_cover_every_pixel(size: tuple[int, int], windows: int) -> None:
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    model = Brightness()
    found = find_classes(model, image, plain(window=24, window_stride=16))
    assert torch.equal(found, (image[0] // 64).byte())
    assert len(model.shapes) == windows
    assert max(max(shape) for shape in model.shapes) <= 24


def test_a_window_as_large_as_the_image_gives_the_whole_image() -> None:
    model, image = helpers.small(), torch.randint(0, 256, (3, 40, 56), dtype=torch.uint8)
    whole, windowed = (find_classes(model, image, Preparation(window=side)) for side in (None, 56))
    assert torch.equal(whole, windowed)
    assert not torch.equal(whole, find_classes(model, image, Preparation(window=24)))


def test_logits_are_resized_to_the_image_in_strips_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    image = torch.randint(0, 256, (3, 37, 53), dtype=torch.uint8)
    model = helpers.small()
    once = find_classes(model, image, Preparation(short_side=20))
    monkeypatch.setattr("laplacianformer.segmentation._classes._MOST_NUMBERS", 3 * 53 * 5)
    assert torch.equal(find_classes(model, image, Preparation(short_side=20)), once)
    from torchvision.transforms.v2.functional import resize

    small = resize(image, [20, 29], antialias=True)
    with torch.inference_mode():
        logits = F.interpolate(model(Preparation().normalised(small)[None]), (37, 53), mode="bilinear")
    assert (logits[0].argmax(0) == once).float().mean() > 0.999


def test_logits_that_are_not_finite_are_an_error_that_names_the_layer() -> None:
    model = helpers.small()
    with torch.no_grad():
        model.decoder.p5.bias[0] = math.inf
    with pytest.raises(InputError, match=r"the weights decoder\.p5\.bias are already not finite"):
        find_classes(model, torch.zeros(3, 32, 32, dtype=torch.uint8), Preparation())
