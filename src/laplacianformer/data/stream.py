"""Large data sets: images are decoded and augmented by worker processes as they are needed."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate, get_worker_info

from laplacianformer.data.batch import NO_LABEL, Batch
from laplacianformer.data.order import Order, mix, seed_all
from laplacianformer.data.sources import Images
from laplacianformer.errors import InputError
from laplacianformer.recipes import Augment, Data, DetectionData

ATTEMPTS = 100  # neighbours tried in place of an unreadable image before a black one stands in
Sample = tuple[Tensor, int, tuple[str, ...]]


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


def evaluation_transform(data: Data) -> Callable[[Any], Tensor]:
    return create_transform(
        data.size,
        is_training=False,
        crop_pct=data.crop_pct,
        interpolation=data.interpolation,
        mean=data.mean,
        std=data.std,
    )


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
        self.places = Places(order)
        self.loader: DataLoader[Any] = DataLoader(
            TrainingImages(images, data, augment, order.seed),
            batch_sampler=self.places,
            collate_fn=collate,
            **worker_options(data),
        )

    def __len__(self) -> int:
        return len(self.places.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start`; those before it are not read."""
        self.places.epoch, self.places.start = epoch, start
        yield from self.loader


class EvaluationImages(Dataset[Sample]):
    """Images of this process in order, equally many for all processes; unreadable ones are black, without a label."""

    def __init__(self, images: Images, data: Data, rank: int, world: int) -> None:
        self.images, self.transform, self.size = images, evaluation_transform(data), data.size
        self.index = range(rank, -(-len(images) // world) * world, world)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> Sample:
        index, black = self.index[place], torch.zeros(3, self.size, self.size)
        if index >= len(self.images):
            return black, NO_LABEL, ()
        try:
            image, target = self.images.read(index)
        except Exception as error:  # whatever a broken file makes a decoder raise
            return black, NO_LABEL, (f"{self.images.name(index)}: {error}",)
        return self.transform(image), target, ()


def stream_evaluation(images: Images, data: Data, batch_size: int, rank: int = 0, world: int = 1) -> "DataLoader[Any]":
    """Evaluation batches of this process, in order."""
    return DataLoader(
        EvaluationImages(images, data, rank, world), batch_size, collate_fn=collate, **worker_options(data)
    )


def collate(samples: list[Sample]) -> Batch:
    images, targets = default_collate([sample[:2] for sample in samples])
    return Batch(images, targets, tuple(line for sample in samples for line in sample[2]))


def worker_options(data: Data | DetectionData) -> dict[str, Any]:
    return {
        "num_workers": data.workers,
        "persistent_workers": data.workers > 0,
        "pin_memory": torch.cuda.is_available(),
    }


# ---- data sets that give images in an order of their own: WebDataset, TFDS, streamed Hugging Face ----


class InTheirOrder(IterableDataset[Sample]):
    """One pass over a timm data set. What is random about a sample depends on the pass, the worker and its number.

    `share` = (rank, world) gives every world-th sample; the data set itself must then give all of them.
    """

    def __init__(
        self, dataset: Any, transform: Callable[[Any], Tensor], seed: int, share: tuple[int, int] = (0, 1)
    ) -> None:
        self.dataset, self.transform, self.seed, self.share = dataset, transform, seed, share

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        for number, (image, target) in enumerate(self.dataset):
            if number % self.share[1] != self.share[0]:
                continue
            seed_all(mix(self.seed, worker.id if worker else 0, number))
            yield self.transform(image.convert("RGB")), int(target), ()


class IterableTraining:
    """Training batches of a data set without positions: a resumed run reads past what it has seen."""

    def __init__(self, create: Callable[[int], Any], order: Order, data: Data, augment: Augment) -> None:
        """`create(seed)` opens the data set for one pass."""
        self.create, self.order, self.data = create, order, data
        self.transform = training_transform(data, augment)

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        number = 0
        for one_pass in range(len(self)):  # more than one where a process has fewer than its share of the shards
            for batch in self.read(mix(self.order.seed, epoch, one_pass)):
                if number >= start:
                    yield batch
                number += 1
                if number == len(self):
                    return

    def read(self, seed: int) -> "DataLoader[Any]":
        # Workers shuffle by seeds that the loader draws; the shards are dealt out by a seed that all processes share.
        dataset = InTheirOrder(self.create(seed % 2**31), self.transform, mix(seed, self.order.rank))
        return DataLoader(
            dataset,
            self.order.batch_size // self.order.world,
            drop_last=True,
            collate_fn=collate,
            num_workers=self.data.workers,
            generator=torch.Generator().manual_seed(mix(seed, self.order.rank)),
        )
