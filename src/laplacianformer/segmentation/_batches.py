"""Batches for segmentation: augmented crops for training, and whole held-out images one by one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms.v2.functional import pil_to_tensor

from laplacianformer._util.errors import InputError
from laplacianformer.data._evaluation import one_by_one
from laplacianformer.data._order import Order, mix, seed_all
from laplacianformer.data._training import EpochBatches, read_or_neighbour
from laplacianformer.segmentation._augment import Augmentation, Sample
from laplacianformer.segmentation._images import LabelledImages, open_images
from laplacianformer.segmentation._labels import IGNORED, Array
from laplacianformer.segmentation._recipe import SegmentationRecipe


class SegmentationBatch(NamedTuple):
    """Crops (B, 3, H, W) of bytes, their classes (B, H, W), the sizes (B, 2) of what is not padding, and one line for
    each image that could not be read."""

    images: Tensor
    targets: Tensor
    sizes: Tensor
    corrupt: tuple[str, ...] = ()


class HeldOut(NamedTuple):
    """A held-out image (3, H, W) of bytes with its classes (H, W), or the reason why it can't be read."""

    number: int
    image: Tensor | None
    classes: Tensor | None
    reason: str = ""


@dataclass
class SegmentationLoaders:
    """Training batches, held-out images one by one, and the held-out images themselves."""

    train: EpochBatches[SegmentationBatch]
    val: Iterable[HeldOut]
    held_out: LabelledImages
    images: dict[str, int | None]  # number of images per split


def open_segmentation(recipe: SegmentationRecipe, rank: int = 0, world: int = 1) -> SegmentationLoaders:
    """The batches of process `rank` of `world`."""
    data, seed, size = recipe.data, recipe.run.seed, recipe.optimise.batch_size
    train, held_out = open_images(data, "train", seed), open_images(data, "val", seed)
    order = Order(len(train), size, seed, rank=rank, world=world)
    if recipe.segmenter.name == "upernet" and size == world:
        raise InputError(
            f"optimise.batch_size={size} on {world} processes is one image each: the batch norms of upernet need two"
        )
    crops = TrainingCrops(train, Augmentation(recipe.augment, data), data.crop, seed)
    training = EpochBatches(crops, order, _collate, data.workers)
    images: dict[str, int | None] = {"training": len(train), "held-out": len(held_out)}
    return SegmentationLoaders(training, held_out_images(held_out, data.workers, rank, world), held_out, images)


class TrainingCrops(Dataset[tuple[Sample, tuple[str, ...]]]):
    """Augmented crops by (epoch, key). What is random in a sample depends on these two alone."""

    def __init__(self, images: LabelledImages, transform: Augmentation, crop: tuple[int, int], seed: int) -> None:
        self.images, self.transform, self.crop, self.seed = images, transform, crop, seed

    def __getitem__(self, epoch_and_key: tuple[int, int]) -> tuple[Sample, tuple[str, ...]]:
        epoch, key = epoch_and_key
        found, corrupt = read_or_neighbour(self.images, key)
        if found is None:
            nothing = torch.full(self.crop, IGNORED, dtype=torch.uint8)
            return (torch.zeros(3, *self.crop, dtype=torch.uint8), nothing, torch.tensor(self.crop)), corrupt
        seed_all(mix(self.seed, epoch, key, 3))
        return self.transform(*found), corrupt


def _collate(samples: list[tuple[Sample, tuple[str, ...]]]) -> SegmentationBatch:
    images, targets, sizes = default_collate([sample for sample, _ in samples])
    return SegmentationBatch(images, targets, sizes, tuple(line for _, lines in samples for line in lines))


def held_out_images(images: LabelledImages, workers: int, rank: int = 0, world: int = 1) -> "DataLoader[Any]":
    """One by one: they may have any sizes."""
    return one_by_one(images, _held_out, workers, rank, world)


def _held_out(number: int, item: tuple[Image.Image, Array] | None, reason: str) -> HeldOut:
    if item is None:
        return HeldOut(number, None, None, reason)
    image, indices = item
    return HeldOut(number, pil_to_tensor(image), torch.from_numpy(indices))
