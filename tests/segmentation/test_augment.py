"""Augmentation: labels go where their pixels go, none is made up, and what is added is ignored."""

import colorsys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from laplacianformer.data import seed_all
from laplacianformer.segmentation._augment import Augmentation
from laplacianformer.segmentation._labels import IGNORED
from laplacianformer.segmentation._recipe import SegmentationAugment, SegmentationData

GREY = {0: 10, 1: 90, 2: 170, IGNORED: 250}  # the colour of each class in the images below


def augmented(indices: np.ndarray, crop: tuple[int, int], short_side: int | None = None, **keys: Any) -> Any:
    """The image shows its own label map."""
    values = np.vectorize(GREY.get)(indices).astype(np.uint8)
    image = Image.fromarray(np.repeat(values[..., None], 3, 2))
    settings = {"scale": (1.0, 1.0), "largest_class": 1.0, "flip": 0.0, "colour": 0.0, **keys}
    return Augmentation(SegmentationAugment(**settings), SegmentationData(crop=crop, short_side=short_side))(
        image, indices
    )


def shown(labels: torch.Tensor) -> torch.Tensor:
    return torch.tensor([GREY.get(value, 0) for value in range(256)], dtype=torch.uint8)[labels.long()]


@pytest.fixture
def blocks() -> np.ndarray:
    """Blocks of 8 x 8 pixels of three classes, with two blocks that are ignored."""
    coarse = np.array([[0, 1, 2, 1], [2, IGNORED, 0, 1], [1, 2, IGNORED, 0]], dtype=np.uint8)
    return coarse.repeat(8, 0).repeat(8, 1)


def test_nothing_changes_without_augmentation(blocks: np.ndarray) -> None:
    pixels, labels, size = augmented(blocks, (24, 32))
    assert np.array_equal(labels.numpy(), blocks)
    assert torch.equal(pixels[0], shown(labels))
    assert size.tolist() == [24, 32]


def test_a_smaller_image_is_padded_with_ignored_pixels_on_the_right_and_below(blocks: np.ndarray) -> None:
    pixels, labels, size = augmented(blocks, (30, 40))
    assert size.tolist() == [24, 32]
    assert np.array_equal(labels[:24, :32].numpy(), blocks)
    assert (labels[24:] == IGNORED).all()
    assert (labels[:, 32:] == IGNORED).all()
    assert (pixels[:, 24:] == 0).all()


def test_labels_are_cropped_and_flipped_with_their_pixels(blocks: np.ndarray) -> None:
    seen = set()
    for seed in range(20):
        seed_all(seed)
        pixels, labels, _ = augmented(blocks, (17, 19), flip=0.5)
        assert torch.equal(pixels[0], shown(labels)), "at every pixel"
        seen.add(labels.numpy().tobytes())
    assert len(seen) > 10


@pytest.mark.parametrize("factor", [0.5, 1.7, 2.0])
def test_resizing_makes_no_new_labels(blocks: np.ndarray, factor: float) -> None:
    """Bilinear resizing would put class 1 between 0 and 2, and numbers that are no class beside what is ignored."""
    size = round(24 * factor), round(32 * factor)
    pixels, labels, found = augmented(blocks, size, scale=(factor, factor))
    assert tuple(found.tolist()) == size
    assert set(labels.unique().tolist()) == {0, 1, 2, IGNORED}
    # Away from the edges of blocks, image and labels agree.
    near = torch.nn.functional.max_pool2d(shown(labels).float()[None], 5, 1, 2)[0]
    far = -torch.nn.functional.max_pool2d(-shown(labels).float()[None], 5, 1, 2)[0]
    inside = near == far
    assert inside.float().mean() > 0.1
    assert torch.equal(pixels[0][inside], shown(labels)[inside])


@pytest.mark.parametrize("factor", [0.5, 0.7, 1.7, 2.0])
def test_a_resized_label_is_that_of_the_pixel_below_its_centre(factor: float) -> None:
    labels = np.random.default_rng(0).integers(0, 200, (24, 33), dtype=np.uint8)
    size = round(24 * factor), round(33 * factor)
    augment = SegmentationAugment(scale=(factor, factor), largest_class=1.0, flip=0.0, colour=0.0)
    found = Augmentation(augment, SegmentationData(crop=size))(Image.new("RGB", (33, 24)), labels)[1]
    rows, columns = (
        ((2 * np.arange(length) + 1) * before) // (2 * length) for length, before in zip(size, (24, 33), strict=True)
    )
    assert np.array_equal(found.numpy(), labels[rows][:, columns])


def test_the_short_side_comes_before_the_random_factor(blocks: np.ndarray) -> None:
    assert augmented(blocks, (96, 96), short_side=48)[2].tolist() == [48, 64]


def test_photometric_distortion_leaves_the_labels(blocks: np.ndarray) -> None:
    seed_all(0)
    pixels, labels, _ = augmented(blocks, (24, 32), colour=1.0)
    assert np.array_equal(labels.numpy(), blocks)
    assert not torch.equal(pixels[0], shown(labels))


def distorted(colour: tuple[int, int, int], probability: float) -> torch.Tensor:
    image = Image.new("RGB", (16, 16), colour)
    augment = SegmentationAugment(scale=(1.0, 1.0), largest_class=1.0, flip=0.0, colour=probability)
    pixels = Augmentation(augment, SegmentationData(crop=(16, 16)))(image, np.zeros((16, 16), dtype=np.uint8))[0]
    assert (pixels == pixels[:, :1, :1]).all(), "of one colour as before"
    return pixels[:, 0, 0].int()


def test_distorted_red_is_red_of_another_brightness_saturation_and_hue() -> None:
    """The channels are never permuted: a colour may say what a class is."""
    found = set()
    for seed in range(60):
        seed_all(seed)
        red, green, blue = distorted((200, 0, 0), 0.5).tolist()
        assert red > green, (seed, red, green, blue)
        assert red > blue, (seed, red, green, blue)
        found.add((red, green, blue))
    assert len(found) > 30


def test_distortion_has_the_ranges_of_the_pvt_line() -> None:
    """Of grey only brightness and contrast change: 100 to (100 - 32) / 2 and (100 + 32) * 1.5."""
    values = []
    for seed in range(400):
        seed_all(seed)
        red, green, blue = distorted((100, 100, 100), 1.0).tolist()
        assert max(red, green, blue) - min(red, green, blue) <= 2, "of rounding"
        values.append(red)
    assert 33 <= min(values) < 45
    assert 180 < max(values) <= 199


def test_hues_turn_by_a_tenth_of_the_circle_at_most() -> None:
    hues = []
    for seed in range(400):
        seed_all(seed)
        red, green, blue = (value / 255 for value in distorted((150, 30, 30), 1.0).tolist())
        hue = colorsys.rgb_to_hsv(red, green, blue)[0]
        hues.append(hue - round(hue))
    assert -0.11 < min(hues) < -0.08
    assert 0.08 < max(hues) < 0.11


def test_each_part_of_the_distortion_has_its_probability() -> None:
    seed_all(0)
    found = [all(abs(value - 100) < 3 for value in distorted((100, 100, 100), 0.25).tolist()) for _ in range(400)]
    assert 0.5 < sum(found) / 400 < 0.68, "grey is as it was without brightness and contrast: 0.75 * 0.75, and rounding"
    assert all(distorted((150, 30, 30), 0.0).tolist() == [150, 30, 30] for _ in range(20))


def test_a_crop_of_almost_one_class_is_drawn_again() -> None:
    """One block in a hundred is of another class: few random crops have it."""
    indices = np.zeros((80, 80), dtype=np.uint8)
    indices[:8, :8] = 1
    indices[40:] = IGNORED  # does not count
    found = []
    for limit in (1.0, 0.9):
        count = 0
        for seed in range(40):
            seed_all(seed)
            count += bool((augmented(indices, (16, 16), largest_class=limit)[1] == 1).any())
        found.append(count)
    assert found[1] > 2 * found[0]
