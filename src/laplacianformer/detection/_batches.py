"""Batches for detection: augmented images with their boxes and masks, grouped by shape."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from laplacianformer._util.errors import InputError
from laplacianformer.data._evaluation import one_by_one
from laplacianformer.data._order import Order, mix, seed_all
from laplacianformer.data._training import EpochBatches, read_or_neighbour
from laplacianformer.detection._coco import CocoImages, Target, open_coco
from laplacianformer.detection._recipe import DetectionAugment, DetectionData, DetectionRecipe

_SIDE = 32  # pixels of the black image that replaces one if no other could be read; its batch says so


class DetectionBatch(NamedTuple):
    """Images (3, H, W) of bytes, their targets, and one line for each image that could not be read."""

    images: list[Tensor]
    targets: list[Target]
    corrupt: tuple[str, ...] = ()


class HeldOut(NamedTuple):
    """A held-out image with its index, or the reason why it can't be read."""

    number: int
    image: Tensor | None
    reason: str = ""


@dataclass
class DetectionLoaders:
    """Training batches, held-out images one by one, the names of the classes, and the held-out annotations."""

    train: EpochBatches[DetectionBatch]
    val: Iterable[HeldOut]
    classes: tuple[str, ...]
    held_out: CocoImages
    images: dict[str, int | None]  # number of images per split


def open_detection(recipe: DetectionRecipe, rank: int = 0, world: int = 1) -> DetectionLoaders:
    """The batches of process `rank` of `world`."""
    data, masks = recipe.data, recipe.detector.name == "mask_rcnn"
    train = open_coco(data, "train", masks=masks, seed=recipe.run.seed)
    held_out = open_coco(data, "val", masks=masks, seed=recipe.run.seed)
    if (held_out.classes, held_out.category_ids) != (train.classes, train.category_ids):
        raise InputError(
            f"{train.source} and {held_out.source} have different categories: expected the same ids and names"
        )
    size, seed = recipe.optimise.batch_size, recipe.run.seed
    order = GroupedOrder(len(train), size, seed, rank=rank, world=world, groups=train.upright())
    scenes = TrainingScenes(train, data, recipe.augment, seed)
    training = EpochBatches(scenes, order, _collate, data.workers)
    evaluation = held_out_images(held_out, data.workers, rank, world)
    images: dict[str, int | None] = {"training": len(train), "held-out": len(held_out)}
    return DetectionLoaders(training, evaluation, train.classes, held_out, images)


@dataclass(frozen=True, kw_only=True)
class GroupedOrder(Order):
    """An order in which the images of a batch belong to the same group, so that there is little padding.

    At most one batch is an exception: what is left over of one group is filled up from the other.
    """

    groups: Tensor  # (samples,) of booleans

    def keys(self, epoch: int) -> Tensor:
        """(batches, batch_size / world): the keys of this process."""
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
        order = torch.randperm(self.samples, generator=generator)[: len(self) * self.batch_size]
        grouped = order[self.groups[order].argsort(stable=True)].view(len(self), self.batch_size)
        return grouped[torch.randperm(len(self), generator=generator)][:, self.rank :: self.world]


def training_transform(augment: DetectionAugment, data: DetectionData) -> v2.Transform:
    """Augments an image together with its target; objects of which nothing is left are removed."""
    border = [255 * value for value in data.mean]
    steps: list[v2.Transform] = []
    if augment.colour:
        steps.append(v2.RandomPhotometricDistort(p=augment.colour))
    if augment.zoom_out:
        steps.append(
            v2.RandomZoomOut(fill={tv_tensors.Image: border, tv_tensors.Mask: 0}, side_range=(1, 2), p=augment.zoom_out)
        )
    if augment.crop:
        steps.append(v2.RandomApply([v2.RandomIoUCrop()], augment.crop))
    return v2.Compose([*steps, v2.RandomHorizontalFlip(augment.flip), v2.SanitizeBoundingBoxes()])


class TrainingScenes(Dataset[tuple[Tensor, Target, tuple[str, ...]]]):
    """Augmented images with targets by (epoch, key). What is random in a sample depends on these two alone."""

    def __init__(self, images: CocoImages, data: DetectionData, augment: DetectionAugment, seed: int) -> None:
        self.images, self.seed, self.transform = images, seed, training_transform(augment, data)

    def __getitem__(self, epoch_and_key: tuple[int, int]) -> tuple[Tensor, Target, tuple[str, ...]]:
        epoch, key = epoch_and_key
        found, corrupt = read_or_neighbour(self.images, key)
        if found is None:
            return torch.zeros(3, _SIDE, _SIDE, dtype=torch.uint8), self._no_objects(), corrupt
        image, target = found
        seed_all(mix(self.seed, epoch, key, 3))
        return *self._augmented(v2.functional.pil_to_tensor(image), target), corrupt

    def _no_objects(self) -> Target:
        empty: Target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
        if self.images.masks:
            empty["masks"] = torch.zeros(0, _SIDE, _SIDE, dtype=torch.uint8)
        return empty

    def _augmented(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        size: Any = image.shape[1:]
        wrapped: dict[str, Any] = {**target}
        wrapped["boxes"] = tv_tensors.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=size)
        if "masks" in target:
            wrapped["masks"] = tv_tensors.Mask(target["masks"])
        changed, found = self.transform(tv_tensors.Image(image), wrapped)
        plain = {name: value.as_subclass(Tensor) for name, value in found.items()}
        return changed.as_subclass(Tensor), plain


def _collate(samples: list[tuple[Tensor, Target, tuple[str, ...]]]) -> DetectionBatch:
    images, targets, lines = zip(*samples, strict=True)
    return DetectionBatch(list(images), list(targets), tuple(line for part in lines for line in part))


def held_out_images(images: CocoImages, workers: int, rank: int = 0, world: int = 1) -> "DataLoader[Any]":
    """One by one: a batch is padded to the size of its largest image, which costs time."""
    return one_by_one(images, _held_out, workers, rank, world)


def _held_out(number: int, item: tuple[Image.Image, Target] | None, reason: str) -> HeldOut:
    return HeldOut(number, None if item is None else v2.functional.pil_to_tensor(item[0]), reason)
