"""From a recipe to the batches of training and evaluation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

from torch.utils.data import DataLoader

from laplacianformer.data.batch import Batch
from laplacianformer.data.memory import Memory, MemoryEvaluation, MemoryTraining
from laplacianformer.data.order import Order
from laplacianformer.data.sources import Images, Once, numbered, open_images, open_iterable, samples_of
from laplacianformer.data.stream import (
    InTheirOrder,
    IterableTraining,
    StreamTraining,
    collate,
    evaluation_transform,
    stream_evaluation,
)
from laplacianformer.errors import InputError
from laplacianformer.recipes import Recipe


class Training(Protocol):
    """Batches of an epoch, from one of them on."""

    def __len__(self) -> int: ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...


@dataclass
class Loaders:
    """Training batches, evaluation batches, and the names of the classes."""

    train: Training
    val: Iterable[Batch]
    classes: tuple[str, ...]


def open_loaders(recipe: Recipe, rank: int = 0, world: int = 1, once: Once | None = None) -> Loaders:
    """The batches of process `rank` of `world`. `once` lets one process list the files for all."""
    if recipe.data.reader.startswith(("wds/", "tfds/", "hfids/")):
        return _iterable(recipe, rank, world)
    train = open_images(recipe.data, "train", once=once)
    val = open_images(recipe.data, "val", train.classes, once=once)
    if val.classes != train.classes[: len(val.classes)]:  # Fewer is fine where classes are numbers.
        pairs = zip_longest(val.classes, train.classes[: len(val.classes)])
        wrong = next(name for name, expected in pairs if name != expected)
        raise InputError(
            f"validation has {len(val.classes)} classes, training {len(train.classes)}: {wrong!r} is not in its place"
        )
    make = _in_memory if recipe.data.cache else _streamed
    return make(recipe, train, val, rank, world)


def _in_memory(recipe: Recipe, train: Images, val: Images, rank: int, world: int) -> Loaders:
    memory, batch_size = Memory(train, recipe.data), recipe.optimise.batch_size
    order = Order(len(memory), batch_size, recipe.run.seed, recipe.data.repeats, rank, world)
    evaluation = MemoryEvaluation(Memory(val, recipe.data), batch_size // world, rank, world)
    return Loaders(MemoryTraining(memory, order, recipe.augment), evaluation, train.classes)


def _streamed(recipe: Recipe, train: Images, val: Images, rank: int, world: int) -> Loaders:
    data, batch_size = recipe.data, recipe.optimise.batch_size
    order = Order(len(train), batch_size, recipe.run.seed, data.repeats, rank, world)
    evaluation = stream_evaluation(val, data, batch_size // world, rank, world)
    return Loaders(StreamTraining(train, order, data, recipe.augment), evaluation, train.classes)


def _iterable(recipe: Recipe, rank: int, world: int) -> Loaders:
    data, batch_size = recipe.data, recipe.optimise.batch_size
    if data.cache or data.repeats > 1:
        raise InputError(f"{data.reader} gives images in its own order: data.cache and data.repeats don't work with it")

    def create(seed: int) -> Any:
        return open_iterable(data, "train", seed, batch_size // world)

    order = Order(samples_of(create(0), data), batch_size, recipe.run.seed, 1, rank, world)
    val = open_iterable(data, "val", 0, batch_size // world)
    # timm would cut the shards by process and drop what is left over: each process reads all, and takes its share.
    val.reader.dist_rank, val.reader.dist_num_replicas = 0, 1
    held_out = InTheirOrder(val, evaluation_transform(data), 0, share=(rank, world))
    evaluation: DataLoader[Any] = DataLoader(held_out, batch_size // world, collate_fn=collate)
    classes = numbered(data.num_classes, data.reader)
    return Loaders(IterableTraining(create, order, data, recipe.augment), evaluation, classes)
