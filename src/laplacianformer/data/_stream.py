"""Large data sets: training images are decoded and augmented by worker processes as they are needed."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from laplacianformer.data._batch import Batch, Sample, collate, lasting_options
from laplacianformer.data._indexed import Images
from laplacianformer.data._order import Order, mix, seed_all

ATTEMPTS = 100  # neighbours tried instead of an unreadable image before a black one replaces it
Transform = Callable[[Image.Image], Tensor]  # augments an image and returns what the model expects, (3, size, size)


class TrainingImages(Dataset[Sample]):
    """Augmented images by (epoch, key). What is random in a sample depends on these two alone."""

    def __init__(self, images: Images, transform: Transform, size: int, seed: int) -> None:
        self.images, self.transform, self.size, self.seed = images, transform, size, seed

    def __getitem__(self, epoch_and_key: tuple[int, int]) -> Sample:
        epoch, key = epoch_and_key
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


class EpochSampler(Sampler[list[tuple[int, int]]]):
    """The batches of one epoch, from index `start` on, as lists of (epoch, key)."""

    def __init__(self, order: Order) -> None:
        self.order, self.epoch, self.start = order, 0, 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for keys in self.order.keys(self.epoch)[self.start :].tolist():
            yield [(self.epoch, key) for key in keys]


class StreamTraining:
    """Training batches from worker processes."""

    def __init__(self, images: Images, order: Order, transform: Transform, size: int, workers: int) -> None:
        self.order, self.sampler = order, EpochSampler(order)
        self.loader: DataLoader[Any] = DataLoader(
            TrainingImages(images, transform, size, order.seed),
            batch_sampler=self.sampler,
            collate_fn=collate,
            **lasting_options(workers),
        )

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from index `start` on; those before it are not read."""
        self.sampler.epoch, self.sampler.start = epoch, start
        yield from self.loader
