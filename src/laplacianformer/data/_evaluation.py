"""Batches for evaluation, in training and in `laplacianformer eval`: each image once, with the same transform."""

from collections.abc import Callable, Iterator
from typing import Any, Generic

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from laplacianformer.data._batch import NO_LABEL, Sample, collate, lasting_options
from laplacianformer.data._images import to_input
from laplacianformer.data._indexed import Images
from laplacianformer.data._shards import Stream, part_of_worker
from laplacianformer.data._training import AnyBatch, Item, Items
from laplacianformer.data._workers import worker_options


def evaluation_batches(
    images: Images | Stream, model_input: dict[str, Any], batch_size: int, workers: int, rank: int = 0, world: int = 1
) -> "DataLoader[Any]":
    """The part of process `rank` of `world`; all processes have the same number of images.

    model_input: what the model expects, as in a weights file: size, mean, std, interpolation, crop_pct.
    """
    if isinstance(images, Stream):
        dataset: Any = _StoredImages(images, InputReader(model_input), rank, world)
        workers = workers if images.workers_help else 0
    else:
        dataset = EvaluationImages(images, InputReader(model_input), rank, world)
    return DataLoader(dataset, batch_size, collate_fn=collate, **lasting_options(workers))


class InputReader:
    """Reads images as the model expects them; an unreadable one is black, without a label, with the reason."""

    def __init__(self, model_input: dict[str, Any]) -> None:
        self.transform, self.shape = to_input(model_input), model_input["size"]

    def read(self, images: Images | Stream, which: Any) -> Sample:
        """`which`: an index into images, or a sample of a stream."""
        try:
            image, target = images.read(which)
        except Exception as error:  # whatever a broken file makes a decoder raise
            return self.nothing(f"{images.name(which)}: {error}")
        return self.transform(image), target, ()

    def nothing(self, *reason: str) -> Sample:
        """Black, without a label."""
        return torch.zeros(self.shape), NO_LABEL, reason


class EvaluationImages(Dataset[Sample]):
    """Images of this process by index; unreadable ones, and those that pad the last round, have no label."""

    def __init__(self, images: Images, reader: InputReader, rank: int, world: int) -> None:
        self.images, self.reader = images, reader
        self.index = range(rank, -(-len(images) // world) * world, world)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> Sample:
        index = self.index[position]
        return self.reader.read(self.images, index) if index < len(self.images) else self.reader.nothing()


class _StoredImages(IterableDataset[Sample]):
    """The same for a stream: each of the n workers of all processes goes through all of it and decodes every n-th
    image."""

    def __init__(self, stream: Stream, reader: InputReader, rank: int, world: int) -> None:
        self.stream, self.reader, self.rank, self.world = stream, reader, rank, world

    def __iter__(self) -> Iterator[Sample]:
        rank, world, worker, workers = part_of_worker(self.rank, self.world)
        mine, parts, seen = rank * workers + worker, world * workers, 0
        for seen, sample in enumerate(self.stream.stored(), 1):
            if (seen - 1) % parts == mine:
                yield self.reader.read(self.stream, sample)
        if 0 < seen % parts <= mine:
            yield self.reader.nothing()


class _OneByOne(Dataset[AnyBatch], Generic[AnyBatch, Item]):
    """The samples of this process in order."""

    def __init__(self, items: Items[Item], entry: Callable[[int, Item | None, str], AnyBatch], index: range) -> None:
        self.items, self.entry, self.index = items, entry, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> AnyBatch:
        index = self.index[position]
        try:
            item = self.items.read(index)
        except Exception as error:  # whatever a broken file makes a decoder raise
            return self.entry(index, None, f"{self.items.name(index)}: {error}")
        return self.entry(index, item, "")


def one_by_one(
    items: Items[Item],
    entry: Callable[[int, Item | None, str], AnyBatch],
    workers: int,
    rank: int = 0,
    world: int = 1,
) -> "DataLoader[Any]":
    """Samples of process `rank` of `world`, not in batches, for they may have any sizes.

    entry: makes what is yielded of the index, the sample (None: it can't be read), and the reason why it can't.
    """
    dataset = _OneByOne(items, entry, range(rank, len(items), world))
    return DataLoader(dataset, batch_size=None, **worker_options(workers))
