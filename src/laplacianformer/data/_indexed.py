"""Images by index: from readers of timm, from torchvision, and from two readers of our own for arrays."""

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.data import _images as images


class Images(Protocol):
    """`read` returns an RGB image and its label, or raises; `name` says which file that is.

    Worker processes get a pickled copy.
    """

    classes: tuple[str, ...]

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[Image.Image, int]: ...

    def name(self, index: int) -> str: ...


class ReaderImages:
    """From a reader of timm, not from timm's data set around it, which replaces unreadable files silently."""

    def __init__(self, reader: Any, classes: Sequence[str]) -> None:
        self.reader, self.classes = reader, tuple(classes)

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, index: int) -> tuple[Image.Image, int]:
        file, target = self.reader[index]
        return images.read(file), checked(target, self.classes)

    def name(self, index: int) -> str:
        return str(self.reader.filename(index, absolute=True))


class ItemImages:
    """From a data set whose items are pairs of image and label: torchvision's, or arrays."""

    def __init__(self, items: Any, classes: Sequence[str], title: str) -> None:
        self.items, self.classes, self.title = items, tuple(classes), title
        if hasattr(items, "loader"):  # torchvision's folders have one that doesn't rotate images or put them on white
            items.loader = _read

    def __len__(self) -> int:
        return len(self.items)

    def read(self, index: int) -> tuple[Image.Image, int]:
        image, target = self.items[index]
        image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
        return images.read(image), checked(target, self.classes)

    def name(self, index: int) -> str:
        files = getattr(self.items, "samples", None)
        return str(files[index][0]) if files else f"{self.title}[{index}]"


class Spread:
    """At most `count` of the images, spread evenly over all: equally many per class where they are sorted by class."""

    def __init__(self, images: Images, count: int) -> None:
        self.images, self.count, self.classes = images, min(count, len(images)), images.classes

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> tuple[Image.Image, int]:
        return self.images.read(self._index(index))

    def name(self, index: int) -> str:
        return self.images.name(self._index(index))

    def _index(self, index: int) -> int:
        return index * len(self.images) // self.count


def _read(path: str) -> Image.Image:
    return images.read(Path(path))


def checked(target: Any, classes: Sequence[str]) -> int:
    """A label, if it is the index of a class."""
    number = int(target)
    if not 0 <= number < len(classes):
        raise InputError(f"its label is {number}, expected 0 to {len(classes) - 1}")
    return number


# ---- images that come as arrays ----


def digits(*, training: bool) -> Images:
    """1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn; a fifth of each class is held out."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise InputError("the digits come with scikit-learn: pip install 'laplacianformer[train]'") from None
    digits = load_digits()
    pixels, targets = (digits.images * (255 / 16)).astype(np.uint8), digits.target
    parts = train_test_split(pixels, targets, test_size=0.2, stratify=targets, random_state=0)
    pairs = list(zip(parts[not training], parts[2 + (not training)], strict=True))
    return ItemImages(pairs, [str(digit) for digit in range(10)], "digits")


def idx(root: Path, num_classes: int | None, *, training: bool) -> Images:
    """The four files of MNIST and Fashion-MNIST, plain or gzipped, in the folder or its subfolders.

    The names of the classes are numbers: `num_classes` of them, or else up to the largest label.
    """
    prefix = "train" if training else "t10k"
    pixels, targets = _idx_file(root, f"{prefix}-images-idx3-ubyte"), _idx_file(root, f"{prefix}-labels-idx1-ubyte")
    if pixels.ndim != 3 or targets.shape != pixels.shape[:1]:
        raise InputError(f"{root}: expected as many labels as images, got {targets.shape} and {pixels.shape}")
    classes = [str(number) for number in range(num_classes or int(targets.max(initial=0)) + 1)]
    return ItemImages(list(zip(pixels, targets, strict=True)), classes, str(root))


def _idx_file(root: Path, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found = [path for path in (*root.rglob(name), *root.rglob(f"{name}.gz")) if path.is_file()]
    if not found:
        raise InputError(f"{root} has no {name} or {name}.gz")
    try:
        content = gzip.decompress(found[0].read_bytes()) if found[0].suffix == ".gz" else found[0].read_bytes()
        zero, kind, rank = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{rank}I", content, 4)
        pixels = np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (struct.error, ValueError, EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError(f"{found[0]} is not a complete idx file") from None
    if (zero, kind) != (0, 8):
        raise InputError(f"{found[0]} is not an idx file of bytes")
    return pixels
