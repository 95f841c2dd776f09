"""Batches for detection: images, boxes and masks are augmented together, and batches have one shape."""

from pathlib import Path

import numpy as np
import pytest
import torch

from laplacianformer.detection._batches import GroupedOrder, TrainingScenes
from laplacianformer.detection._recipe import DetectionAugment, DetectionData
from tests.detection.helpers import open_folder


@pytest.mark.parametrize("masks", [True, False])
def test_if_no_image_can_be_read_a_black_one_says_so(masks: bool, folder: Path) -> None:
    (folder / "empty").mkdir()
    images = open_folder(folder, masks=masks, train_images="empty")
    scenes = TrainingScenes(images, DetectionData(), DetectionAugment(), seed=0)
    image, target, corrupt = scenes[0, 0]
    assert not image.any()
    assert {name: len(value) for name, value in target.items()} == dict.fromkeys(target, 0)
    assert ("masks" in target) == masks
    assert all("there is no " in line for line in corrupt)
    assert corrupt


def test_augmentation_moves_image_box_and_mask_together(folder: Path) -> None:
    """Whatever is drawn: each mask stays within its box and fills it where nothing was cropped or scaled away."""
    augment = DetectionAugment(colour=0.5, zoom_out=0.5, crop=0.7, flip=0.5)
    scenes = TrainingScenes(open_folder(folder), DetectionData(), augment, seed=0)
    seen = set()
    for epoch in range(8):
        image, target, _ = scenes[epoch, 0]
        seen.add(tuple(image.shape))
        assert image.dtype == torch.uint8
        assert target["masks"].shape[1:] == image.shape[1:]
        for box, mask in zip(target["boxes"], target["masks"], strict=True):
            rows, columns = np.nonzero(mask.numpy())
            if len(rows):
                assert columns.min() >= box[0] - 1
                assert columns.max() <= box[2] + 1
                assert rows.min() >= box[1] - 1
                assert rows.max() <= box[3] + 1
        again = scenes[epoch, 0]
        assert torch.equal(again[0], image), "a function of seed, epoch and key"
    assert len(seen) > 2


def test_a_flip_mirrors_exactly(folder: Path) -> None:
    images = open_folder(folder)
    scenes = TrainingScenes(images, DetectionData(), DetectionAugment(flip=1.0), seed=0)
    plain = images.target(0)
    _, flipped, _ = scenes[0, 0]
    assert torch.equal(flipped["masks"], plain["masks"].flip(2))
    assert torch.equal(
        flipped["boxes"],
        torch.stack(
            [48 - plain["boxes"][:, 2], plain["boxes"][:, 1], 48 - plain["boxes"][:, 0], plain["boxes"][:, 3]], 1
        ),
    )


def test_all_batches_but_one_have_one_shape_and_every_image_comes_once() -> None:
    groups = torch.arange(50) % 3 == 0
    order = GroupedOrder(50, 4, seed=3, groups=groups)
    keys = order.keys(0)
    assert keys.shape == (12, 4)
    assert len(keys.unique()) == 48
    mixed = sum(bool(groups[batch].any() and not groups[batch].all()) for batch in keys)
    assert mixed <= 1
    assert not torch.equal(keys, order.keys(1))
    kinds = [bool(groups[batch].float().mean() > 0.5) for batch in keys]
    assert kinds != sorted(kinds), "batches of both shapes are mixed over the epoch"
    halves = [GroupedOrder(50, 4, seed=3, rank=rank, world=2, groups=groups).keys(0) for rank in (0, 1)]
    assert torch.equal(torch.stack(halves, 2).flatten(1), keys)
