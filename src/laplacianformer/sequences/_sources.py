"""The sequences of a task by index, whatever they are made of: those of Long Range Arena, and of two tasks beside it.

A sample is a function of its source and its index: of a generated one, of the seed, the split and the index.
"""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.data import NO_LABEL, Source, mix, open_images
from laplacianformer.data._shards import Stream
from laplacianformer.data._sources import Once, in_this_process
from laplacianformer.sequences import _inpaint as inpaint
from laplacianformer.sequences import _listops as listops
from laplacianformer.sequences import _pathfinder as pathfinder
from laplacianformer.sequences import _recall as recall
from laplacianformer.sequences import _texts as texts

TaskName = Literal["listops", "pathfinder", "image", "text", "retrieval", "recall", "inpaint"]
GENERATED = ("listops", "pathfinder", "recall")
IMAGES = ("pathfinder", "image", "inpaint")  # their tokens are the pixels of square images
# Tokens that the model knows, padding (0) included where sequences are padded.
VOCABULARY: dict[str, int] = {
    "listops": 1 + len(listops.TOKENS),
    "pathfinder": 256,
    "image": 256,
    "text": texts.VOCABULARY,
    "retrieval": texts.VOCABULARY,
    "recall": 1 + len(recall.TOKENS),
    "inpaint": 1 + inpaint.LEVELS,
}
_SPLITS = {"train": 0, "training": 0, **dict.fromkeys(("validation", "val", "valid", "eval"), 1), "test": 2}

Array = np.ndarray[Any, Any]
Sequence = Array | tuple[Array, Array]  # tokens (N,), or those of two texts
Label = int | Array  # a class, or one for each token (N,)


@dataclass(frozen=True)
class Form:
    """What the sequences of a task are made of."""

    pairs: bool = False  # of two texts
    per_token: bool = False  # there is a label for each token; `NO_LABEL` where nothing is asked

    def nothing(self, label: int) -> tuple[Sequence, Label]:
        """One token in place of a sequence that can't be read; its batch says so."""
        token = np.zeros(1, dtype=np.int16)
        unasked = np.full(1, NO_LABEL, dtype=np.int16)
        return (token, token) if self.pairs else token, unasked if self.per_token else label


SINGLE = Form()
_FORMS = {"retrieval": Form(pairs=True), "inpaint": Form(per_token=True)}


def form_of(task: str) -> Form:
    """The form of the sequences of a task."""
    return _FORMS.get(task, SINGLE)


class Sequences(Protocol):
    """`read` returns a sequence and its label, or raises; `name` says which one that is.

    Worker processes get a pickled copy.
    """

    @property
    def classes(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[Sequence, Label]: ...

    def name(self, index: int) -> str: ...


@dataclass(frozen=True)
class Wanted:
    """The sequences of one split, before they are opened."""

    task: TaskName
    split: str
    length: int  # tokens, at most
    root: str | None = None
    reader: str = "folder"  # of images
    samples: int | None = None  # of a generated task: how many; of others: the most, spread evenly
    seed: int = 0  # of a generated task, and of what is hidden
    shortest: int = 500  # of ListOps: tokens


def open_sequences(wanted: Wanted, once: Once = in_this_process) -> Sequences:
    """The sequences of a split. `once` calls a function in one process and returns its result in all."""
    check_length(wanted.task, wanted.length, wanted.shortest)
    if wanted.task in GENERATED:
        return _generated(wanted)
    if wanted.task in ("image", "inpaint"):
        return _ImageSequences(wanted, once)
    if wanted.root is None:
        raise InputError(f"the task {wanted.task!r} reads texts: give --data DIR")
    if wanted.reader != "folder":
        raise InputError(f"the task {wanted.task!r} reads a folder of texts, not {wanted.reader}: give --data DIR")
    kind = texts.TextFolder if wanted.task == "text" else texts.TextPairs
    opened: Sequences = once(partial(kind, Path(wanted.root), wanted.split, wanted.length))
    return opened if wanted.samples is None else _Spread(opened, wanted.samples)


def check_length(task: str, length: int, shortest: int) -> None:
    """Refuse a number of tokens that the sequences of a task can't have. Messages name the keys of a recipe."""
    side = pathfinder.SIDE
    if task == "pathfinder" and length != side**2:
        raise InputError(
            f"data.length must be {side**2} for pathfinder, whose images are {side} x {side}, got {length}"
        )
    if task == "recall" and length > recall.LONGEST:
        raise InputError(f"data.length must be at most {recall.LONGEST} for recall, got {length}")
    if task in ("image", "inpaint") and math.isqrt(length) ** 2 != length:
        raise InputError(f"data.length must be a square number for {task}, got {length}")
    # Lists have every length from 4 tokens on; a range that holds one is found by drawing again.
    if task == "listops" and shortest > length - 4:
        raise InputError(f"data.shortest must be at least 4 below data.length, got {shortest} and {length}")


def _generated(wanted: Wanted) -> "_Generated":
    if wanted.split not in _SPLITS:
        raise InputError(f"no split {wanted.split!r}: expected one of {', '.join(_SPLITS)}")
    if wanted.samples is None:
        raise InputError(f"the task {wanted.task!r} is generated: give data.train_samples=N and data.val_samples=N")
    return _Generated(wanted, mix(wanted.seed, _SPLITS[wanted.split]))


class _Generated:
    """ListOps, Pathfinder or associative recall: nothing is stored."""

    def __init__(self, wanted: Wanted, seed: int) -> None:
        self.wanted, self.seed = wanted, seed
        self.classes = {
            "listops": listops.CLASSES,
            "pathfinder": pathfinder.CLASSES,
            "recall": recall.CLASSES,
        }[wanted.task]

    def __len__(self) -> int:
        return self.wanted.samples or 0

    def read(self, index: int) -> tuple[Sequence, Label]:
        if self.wanted.task == "listops":
            rules = listops.ListOps(self.wanted.shortest, self.wanted.length)
            tokens, value = rules.generate(self.seed, index)
            return listops.encode(tokens), value
        if self.wanted.task == "recall":
            tokens, value = recall.generate(self.seed, index, self.wanted.length)
            return recall.encode(tokens), value
        pixels, label = pathfinder.generate(self.seed, index)
        return pixels.reshape(-1).astype(np.int16), label

    def name(self, index: int) -> str:
        return f"{self.wanted.task}[{index}]"


class _ImageSequences:
    """Images in grey, pixel by pixel, row by row; those of `inpaint` with hidden pixels."""

    def __init__(self, wanted: Wanted, once: Once) -> None:
        self.wanted = wanted
        source = Source(wanted.reader, wanted.root, wanted.split, samples=wanted.samples)
        images = open_images(source, once)
        if isinstance(images, Stream):
            raise InputError(f"{wanted.reader} is a stream of images: expected a folder, or another reader by index")
        self.images, self.side = images, math.isqrt(wanted.length)
        self.classes = inpaint.CLASSES if wanted.task == "inpaint" else images.classes

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> tuple[Sequence, Label]:
        image, target = self.images.read(index)
        pixels = grey(image, self.side)
        return inpaint.hide(pixels, self.wanted.seed, index) if self.wanted.task == "inpaint" else (pixels, target)

    def name(self, index: int) -> str:
        return self.images.name(index)


class _Spread:
    """At most `count` of the sequences, spread evenly over all: equally many per class where they are sorted."""

    def __init__(self, sequences: Sequences, count: int) -> None:
        self.sequences, self.count, self.classes = sequences, min(count, len(sequences)), sequences.classes

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> tuple[Sequence, Label]:
        return self.sequences.read(self._index(index))

    def name(self, index: int) -> str:
        return self.sequences.name(self._index(index))

    def _index(self, index: int) -> int:
        return index * len(self.sequences) // self.count


def grey(image: Image.Image, side: int) -> Array:
    """The pixels of an image as tokens 0 to 255; one of another size is resized."""
    image = image.convert("L")
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(-1).astype(np.int16)
