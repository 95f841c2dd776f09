"""Training batches of images that come in an order of their own, by passes over a stream."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from laplacianformer._util.errors import InputError
from laplacianformer.data._batch import Batch, Sample, collate
from laplacianformer.data._order import Order, mix, seed_all
from laplacianformer.data._shards import Stream, part_of_worker
from laplacianformer.data._stream import Transform
from laplacianformer.data._training import ATTEMPTS
from laplacianformer.data._workers import worker_options


class _EndlessImages(IterableDataset[Sample]):
    """Augmented images, pass after pass: a process with fewer images than others repeats them more often.

    What is random in a sample depends on the seed, the pass, the reading process and worker, and the sample's number.
    """

    def __init__(self, stream: Stream, transform: Transform, size: int, seed: int, rank: int, world: int) -> None:
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
    """Training batches of a data set without random access: a resumed run reads past what it has seen.

    title: what the data set is called in messages.
    """

    def __init__(
        self, stream: Stream, order: Order, transform: Transform, size: int, workers: int, *, title: str
    ) -> None:
        self.stream, self.order, self.transform = stream, order, transform
        self.size, self.workers, self.title = size, workers, title

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from index `start` on; those before it are read and dropped."""
        order, seed = self.order, mix(self.order.seed, epoch)
        loader: DataLoader[Any] = DataLoader(
            _EndlessImages(self.stream, self.transform, self.size, seed, order.rank, order.world),
            order.batch_size // order.world,
            drop_last=True,
            collate_fn=collate,
            **worker_options(self.workers),
            generator=torch.Generator().manual_seed(mix(seed, order.rank)),
        )
        number = 0
        for number, batch in enumerate(islice(loader, len(self)), 1):
            if number > start:
                yield batch
        if number < len(self):
            raise InputError(f"{self.title} has no images for process {order.rank} of {order.world}")
