"""From a recipe to the batches of training and evaluation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from laplacianformer.data.batch import Batch
from laplacianformer.data.memory import Memory, MemoryEvaluation, MemoryTraining
from laplacianformer.data.order import Order
from laplacianformer.data.sources import open_images
from laplacianformer.recipes import Recipe


class Training(Protocol):
    def __len__(self) -> int: ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...


@dataclass
class Loaders:
    """Training batches, evaluation batches, and the names of the classes."""

    train: Training
    val: Iterable[Batch]
    classes: tuple[str, ...]


def open_loaders(recipe: Recipe, rank: int = 0, world: int = 1) -> Loaders:
    """The batches of process `rank` of `world`."""
    data, batch_size = recipe.data, recipe.optimise.batch_size
    train = open_images(data, "train")
    val = open_images(data, "val", train.classes)
    memory = Memory(train, data)
    order = Order(len(memory), batch_size, recipe.run.seed, data.repeats, rank, world)
    evaluation = MemoryEvaluation(Memory(val, data), batch_size // world, rank, world)
    return Loaders(MemoryTraining(memory, order, recipe.augment), evaluation, train.classes)
