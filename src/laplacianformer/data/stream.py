"""Large data sets: training images are decoded and augmented by worker processes as they are needed."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from laplacianformer._util.errors import InputError
from laplacianformer.data.batch import Batch, Sample, collate, worker_options
from laplacianformer.data.indexed import Images
from laplacianformer.data.order import Order, mix, seed_all
from laplacianformer.recipes import Augment, Data

ATTEMPTS = 100  # neighbours tried in place of an unreadable image before a black one stands in


def training_transform(data: Data, augment: Augment) -> Callable[[Any], Tensor]:
    try:
        return create_transform(
            data.size,
            is_training=True,
            scale=augment.scale,
            hflip=augment.flip,
            color_jitter=augment.color_jitter or None,
            auto_augment=augment.rand_augment,
            interpolation=data.interpolation,
            mean=data.mean,
            std=data.std,
            re_prob=augment.erase,
            re_mode="pixel",
        )
    except (AssertionError, ValueError) as error:
        raise InputError(f"augment.rand_augment={augment.rand_augment} can't be used: {error}") from None


class TrainingImages(Dataset[Sample]):
    """Augmented images by (epoch, key). What is random about a sample depends on these alone."""

    def __init__(self, images: Images, data: Data, augment: Augment, seed: int) -> None:
        self.images, self.seed, self.size = images, seed, data.size
        self.transform = training_transform(data, augment)

    def __getitem__(self, place: tuple[int, int]) -> Sample:
        epoch, key = place
        corrupt: list[str] = []
        for attempt in range(ATTEMPTS):
            index = (key + attempt) % len(self.images)
            try:
                image, target = self.images.read(index)
            except Exception as error:  # whatever a broken file makes a decoder raise
                corrupt.append(f"{self.images.name(index)}: {error}")
                continue
            seed_all(mix(self.seed, epoch, key, 3))
            return self.transform(image), target, tuple(corrupt)
        return torch.zeros(3, self.size, self.size), 0, tuple(corrupt)


class Places(Sampler[list[tuple[int, int]]]):
    """The batches of one epoch, from one of them on, as lists of (epoch, key)."""

    def __init__(self, order: Order) -> None:
        self.order, self.epoch, self.start = order, 0, 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for keys in self.order.keys(self.epoch)[self.start :].tolist():
            yield [(self.epoch, key) for key in keys]


class StreamTraining:
    """Training batches from worker processes."""

    def __init__(self, images: Images, order: Order, data: Data, augment: Augment) -> None:
        self.order, self.places = order, Places(order)
        self.loader: DataLoader[Any] = DataLoader(
            TrainingImages(images, data, augment, order.seed),
            batch_sampler=self.places,
            collate_fn=collate,
            **worker_options(data.workers),
        )

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start`; those before it are not read."""
        self.places.epoch, self.places.start = epoch, start
        yield from self.loader
