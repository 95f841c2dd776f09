"""Training batches of images that come in an order of their own, by passes over a stream."""

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from laplacianformer._util.errors import InputError
from laplacianformer.data.batch import Batch, Sample, collate
from laplacianformer.data.order import Order, mix, seed_all
from laplacianformer.data.shards import Stream, part_of_worker
from laplacianformer.data.stream import ATTEMPTS, training_transform
from laplacianformer.recipes import Augment, Data


class EndlessImages(IterableDataset[Sample]):
    """Augmented images, pass after pass: a process with fewer images than others shows them more often.

    What is random about a sample depends on the seed, the pass, on who reads it and on its number.
    """

    def __init__(
        self, stream: Stream, transform: Callable[[Image.Image], Tensor], size: int, seed: int, rank: int, world: int
    ) -> None:
        self.stream, self.transform, self.black = stream, transform, torch.zeros(3, size, size)
        self.seed, self.rank, self.world = seed, rank, world

    def __iter__(self) -> Iterator[Sample]:
        part, corrupt = part_of_worker(self.rank, self.world), list[str]()
        for one_pass in count():
            seen = 0
            for seen, sample in enumerate(self.stream.shuffled(self.seed, one_pass, part), 1):
                try:
                    image, target = self.stream.read(sample)
                except Exception as error:  # whatever a broken file makes a decoder raise
                    corrupt.append(f"{self.stream.name(sample)}: {error}")
                    if len(corrupt) < ATTEMPTS:
                        continue
                    yield self.black, 0, tuple(corrupt)
                else:
                    seed_all(mix(self.seed, one_pass, part.rank, part.worker, seen))
                    yield self.transform(image), target, tuple(corrupt)
                corrupt.clear()
            if seen == 0:  # fewer shards than workers: the others have them
                return


class PassTraining:
    """Training batches of a data set without positions: a resumed run reads past what it has seen."""

    def __init__(self, stream: Stream, order: Order, data: Data, augment: Augment) -> None:
        self.stream, self.order, self.data = stream, order, data
        self.transform = training_transform(data, augment)

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        order, seed = self.order, mix(self.order.seed, epoch)
        loader: DataLoader[Any] = DataLoader(
            EndlessImages(self.stream, self.transform, self.data.size, seed, order.rank, order.world),
            order.batch_size // order.world,
            drop_last=True,
            collate_fn=collate,
            num_workers=self.data.workers,
            generator=torch.Generator().manual_seed(mix(seed, order.rank)),
        )
        number = 0
        for number, batch in enumerate(islice(loader, len(self)), 1):
            if number > start:
                yield batch
        if number < len(self):
            raise InputError(f"{self.data.reader} has no images for process {order.rank} of {order.world}")
