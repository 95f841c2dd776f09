"""Open a data set: timm's readers, and two of our own for images that come as arrays."""

import gzip
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import timm.data
from PIL import Image

from laplacianformer import images
from laplacianformer.errors import InputError
from laplacianformer.recipes import Data

Split = Literal["train", "val"]
FOLDERS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "eval", "evaluation", "test")}
Once = Callable[[Callable[[], Any]], Any]


class Images(Protocol):
    """Images by index. `read` gives an RGB image and its label, or raises; `name` says which file that was.

    Worker processes get a copy by pickling.
    """

    classes: tuple[str, ...]

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[Image.Image, int]: ...

    def name(self, index: int) -> str: ...


def open_images(data: Data, split: Split, classes: Sequence[str] | None = None, *, once: Once | None = None) -> Images:
    """The images of a split; for `val`, labelled by the classes of training.

    `once` calls a function in one process and gives the result to all, so that a folder is listed once.
    """
    if data.reader == "digits":
        return _digits(split)
    if data.root is None and not data.reader.startswith("hfds/"):
        raise InputError(f"the reader {data.reader!r} needs a folder: give --data DIR")
    if data.root is not None and not Path(data.root).exists():
        raise InputError(f"there is no {data.root}: give --data a folder that exists")
    if data.reader == "idx":
        return _idx(Path(str(data.root)), split)
    if data.reader == "folder":
        return _folder(Path(str(data.root)), split, classes, once or (lambda make: make()))
    return _from_timm(data, split)


def _folder(root: Path, split: Split, classes: Sequence[str] | None, once: Once) -> Images:
    """root/train/CLASS/image, or the tar files root/train.tar and root/val.tar."""
    places = [
        root / f"{name}{end}" for end in ("", ".tar") for name in FOLDERS[split] if (root / f"{name}{end}").exists()
    ]
    if not places:
        raise InputError(f"{root} has no {' or '.join(FOLDERS[split])} folder (or .tar): expected {split}/CLASS/image")
    class_map = {name: index for index, name in enumerate(classes)} if classes is not None else None
    return ReaderImages(once(lambda: _listed(places[0], class_map)))


def _listed(place: Path, class_map: dict[str, int] | None) -> Any:
    try:
        dataset = timm.data.create_dataset("", str(place), search_split=False, class_map=class_map)
    except (RuntimeError, ValueError, AssertionError, tarfile.TarError) as error:
        raise InputError(f"can't read {place}: {' '.join(str(error).split())}") from None
    if place.is_dir():
        _check_classes(dataset.reader, place)
    return dataset


def _check_classes(reader: Any, root: Path) -> None:
    """Every folder has images, and every class is one of training's. Reads no folder a second time."""
    counts = np.bincount([target for _, target in reader.samples], minlength=len(reader.class_to_idx))
    empty = [name for name, index in reader.class_to_idx.items() if counts[index] == 0]
    if empty:
        raise InputError(f"{root / empty[0]} has no images: every class needs at least one")
    prefix = len(str(root)) + 1
    used = {path[prefix:].split(os.sep, 1)[0] for path, _ in reader.samples}
    unused = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and entry.name not in used)
    if unused:
        raise InputError(f"{root / unused[0]} has no images of the {len(reader.class_to_idx)} classes of training")


def _from_timm(data: Data, split: Split) -> Images:
    dataset = _create(data, split)
    if hasattr(dataset, "reader"):
        return ReaderImages(dataset, data.num_classes)
    classes = tuple(getattr(dataset, "classes", ())) or numbered(data.num_classes, data.reader)
    return ItemImages(dataset, classes, data.reader)


def _create(data: Data, split: Split, **options: Any) -> Any:
    name = data.train_split if split == "train" else data.val_split
    try:
        return timm.data.create_dataset(data.reader, data.root, split=name, **options)
    except (AssertionError, ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"can't open {data.reader} ({name}) in {data.root}: {reason}") from None


def open_iterable(data: Data, split: Split, seed: int, batch_size: int) -> Any:
    """A timm data set that gives images in an order of its own (wds/, tfds/, hfids/), for one pass."""
    training = split == "train"
    samples = data.train_samples if training else data.val_samples
    options = {"is_training": training, "seed": seed, "batch_size": batch_size, "num_samples": samples}
    return _create(data, split, **options)


def samples_of(dataset: Any, data: Data) -> int:
    """Training images of all processes together."""
    found = data.train_samples or getattr(dataset.reader, "num_samples", None)
    if not found:
        raise InputError(f"{data.reader} doesn't say how many images there are: give data.train_samples=N")
    return int(found)


class ReaderImages:
    """By a reader of timm, around its data set, which replaces an unreadable file without telling."""

    def __init__(self, dataset: Any, num_classes: int | None = None) -> None:
        self.reader = dataset.reader
        named = getattr(self.reader, "class_to_idx", None) or getattr(self.reader, "class_name_to_idx", None)
        self.classes = tuple(sorted(named, key=named.__getitem__)) if named else numbered(num_classes, "this reader")

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, index: int) -> tuple[Image.Image, int]:
        file, target = self.reader[index]
        return images.read(file), int(target)

    def name(self, index: int) -> str:
        return str(self.reader.filename(index, absolute=True))


class ItemImages:
    """Of a data set whose items are pairs of image and label: torchvision's, or arrays."""

    def __init__(self, items: Any, classes: Sequence[str], title: str) -> None:
        self.items, self.classes, self.title = items, tuple(classes), title

    def __len__(self) -> int:
        return len(self.items)

    def read(self, index: int) -> tuple[Image.Image, int]:
        image, target = self.items[index]
        return images.read(Image.fromarray(image) if isinstance(image, np.ndarray) else image), int(target)

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"


def numbered(count: int | None, reader: str) -> tuple[str, ...]:
    if count is None:
        raise InputError(f"{reader} doesn't say how many classes there are: give data.num_classes=N")
    return tuple(str(index) for index in range(count))


# ---- images that come as arrays ----


def _digits(split: Split) -> Images:
    """1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn; a fifth of each class is held out."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise InputError("the digits come with scikit-learn: pip install 'laplacianformer[train]'") from None
    digits = load_digits()
    pixels, targets = (digits.images * (255 / 16)).astype(np.uint8), digits.target
    parts = train_test_split(pixels, targets, test_size=0.2, stratify=targets, random_state=0)
    pairs = list(zip(parts[split == "val"], parts[2 + (split == "val")], strict=True))
    return ItemImages(pairs, [str(digit) for digit in range(10)], "digits")


def _idx(root: Path, split: Split) -> Images:
    """The four files of MNIST and Fashion-MNIST, plain or gzipped, in the folder or below it."""
    prefix = "train" if split == "train" else "t10k"
    pixels, targets = _idx_file(root, f"{prefix}-images-idx3-ubyte"), _idx_file(root, f"{prefix}-labels-idx1-ubyte")
    if pixels.ndim != 3 or targets.shape != pixels.shape[:1]:
        raise InputError(f"{root}: expected as many labels as images, got {targets.shape} and {pixels.shape}")
    classes = [str(index) for index in range(int(targets.max(initial=0)) + 1)]
    return ItemImages(list(zip(pixels, targets, strict=True)), classes, str(root))


def _idx_file(root: Path, name: str) -> np.ndarray:
    found = [*root.rglob(name), *root.rglob(f"{name}.gz")]
    if not found:
        raise InputError(f"{root} has no {name} or {name}.gz")
    try:
        content = gzip.decompress(found[0].read_bytes()) if found[0].suffix == ".gz" else found[0].read_bytes()
        zero, kind, rank = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{rank}I", content, 4)
        pixels = np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (struct.error, ValueError, EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError(f"{found[0]} is not a whole idx file") from None
    if (zero, kind) != (0, 8):
        raise InputError(f"{found[0]} is not an idx file of bytes")
    return pixels
