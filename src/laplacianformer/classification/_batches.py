"""From a recipe to the batches of training and evaluation."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from timm.data import create_transform
from torch import Tensor

from laplacianformer._util.errors import InputError
from laplacianformer.classification._recipe import Augment, Data, Recipe
from laplacianformer.data._batch import Batch
from laplacianformer.data._evaluation import evaluation_batches
from laplacianformer.data._indexed import Images
from laplacianformer.data._labels import Renumbered, numbers_among
from laplacianformer.data._memory import Memory, MemoryEvaluation, MemoryTraining
from laplacianformer.data._order import Order
from laplacianformer.data._passes import PassTraining
from laplacianformer.data._shards import Shards, Stream
from laplacianformer.data._sources import Once, Source, in_this_process, open_images
from laplacianformer.data._stream import stream_training


class _TrainingBatches(Protocol):
    """The batches of an epoch, from one of them on."""

    order: Order

    def __len__(self) -> int: ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...


@dataclass
class Loaders:
    """Training batches, evaluation batches, the names of the classes, and the number of images of each split."""

    train: _TrainingBatches
    val: Iterable[Batch]
    classes: tuple[str, ...]
    images: dict[str, int | None]  # None: a stream that doesn't say


def open_loaders(
    recipe: Recipe, rank: int = 0, world: int = 1, once: Once = in_this_process, *, allow_pipes: bool = False
) -> Loaders:
    """The batches of process `rank` of `world`. `once` lets one process list the files for all."""
    data = recipe.data

    def opened(split: str, classes: int | None, samples: int | None) -> Images | Stream:
        return open_images(Source(data.reader, data.root, split, classes, samples, allow_pipes=allow_pipes), once)

    train = opened(data.train_split, data.num_classes, data.train_samples)
    val = opened(data.val_split, len(train.classes), data.val_samples)
    what = f"{data.root or data.reader} ({data.val_split})"
    numbers = numbers_among(val.classes, train.classes, what, "training doesn't")
    training = _training(recipe, train, rank, world)
    held_out, images = _held_out(recipe, val, rank, world)
    counts = {"training": training.order.samples, "held-out": images}
    return Loaders(training, Renumbered(held_out, numbers), train.classes, counts)


def training_transform(data: Data, augment: Augment) -> Callable[[Any], Tensor]:
    """From a decoded image to what the model sees in training; images in memory are augmented in batches instead."""
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


def _training(recipe: Recipe, images: Images | Stream, rank: int, world: int) -> _TrainingBatches:
    data, augment = recipe.data, recipe.augment

    def order(samples: int) -> Order:
        return Order(samples, recipe.optimise.batch_size, recipe.run.seed, data.repeats, rank, world)

    if data.cache and not isinstance(images, Stream):
        memory = Memory(images, data.input, data.corrupt_limit)
        return MemoryTraining(memory, order(len(memory)), flip=augment.flip, crop_padding=augment.crop_padding)
    if isinstance(images, Stream):
        counted = order(_checked_stream(images, data, world))
        transform = training_transform(data, augment)
        return PassTraining(images, counted, transform, data.size, data.workers, title=data.reader)
    return stream_training(images, order(len(images)), training_transform(data, augment), data.size, data.workers)


def _held_out(recipe: Recipe, images: Images | Stream, rank: int, world: int) -> tuple[Iterable[Batch], int | None]:
    """Batches, and the number of images in all processes where it is known."""
    data, batch_size = recipe.data, recipe.optimise.batch_size // world
    if data.cache and not isinstance(images, Stream):
        memory = Memory(images, data.input, data.corrupt_limit)
        return MemoryEvaluation(memory, batch_size, rank, world), len(memory)
    count = images.samples if isinstance(images, Stream) else len(images)
    return evaluation_batches(images, data.input, batch_size, data.workers, rank, world), count


def _checked_stream(stream: Stream, data: Data, world: int) -> int:
    """Its number of images, if it can be trained on."""
    if data.cache or data.repeats > 1:
        raise InputError(f"{data.reader} has images in its own order: data.cache and data.repeats don't work with it")
    if isinstance(stream, Shards) and len(stream.urls) < world:
        raise InputError(
            f"{data.reader} has {len(stream.urls)} shards for {world} processes, and each needs at least one: "
            "make more shards, or start fewer processes"
        )
    if not stream.samples:
        raise InputError(f"{data.reader} doesn't say how many images there are: give data.train_samples=N")
    return stream.samples
