"""Images with label maps, by index: from folders, in the layouts of ADE20K and Cityscapes, or generated."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import open_regular
from laplacianformer.data import _images as images
from laplacianformer.data import _shapes as shapes
from laplacianformer.data._walk import list_files
from laplacianformer.segmentation._labels import Labels, labels_of, read_labels
from laplacianformer.segmentation._recipe import SegmentationData

logger = logging.getLogger(__name__)

Split = Literal["train", "val", "test"]
Array = np.ndarray[Any, Any]
# What the folder of a split is called.
_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_NAMED = 20  # files left out that the log names; more are only counted
_OBJECTS = "objectInfo150.txt"  # the names of ADE20K's classes, a file of the data set
_ONE_CHANNEL = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")  # modes of Pillow; of a palette, the indices count

_DEPTH, _GREY = 24, 0  # of a PNG: the byte with the bits per number, before that of the kind of colours; a kind


class LabelledImages(Protocol):
    """Images by index with their label maps."""

    labels: Labels
    source: str  # for messages

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """For messages."""

    def read(self, index: int) -> tuple[Image.Image, Array]:
        """An image, and the indices of its classes (height, width), IGNORED where nothing is known. Raises whatever a
        broken file makes a decoder raise."""


def open_images(data: SegmentationData, split: Split, seed: int = 0, labels: Labels | None = None) -> LabelledImages:
    """The images of a split.

    labels: what the values in label maps mean, where neither the recipe nor the data say so.
    """
    if data.reader == "shapes":
        if data.root:
            raise InputError(f"the reader 'shapes' reads no files: give --data folders:{data.root} to train on it")
        count = data.shapes_train if split == "train" else data.shapes_val
        return GeneratedShapes("train" if split == "train" else "val", count, data.shapes_size, seed)
    if data.root is None:
        raise InputError(f"the reader {data.reader!r} needs a folder: give --data DIR")
    root = Path(data.root)
    if not root.is_dir():
        raise InputError(f"there is no folder {root}: give --data a folder with images and label maps")
    meaning = _labels(data, root) or labels
    if meaning is None:
        raise InputError(
            f"nothing says what the values in the label maps of {root} mean: write {root / 'labels.yaml'}, or name "
            "such a file with data.labels"
        )
    image_folder, label_folder = _folders(data, root, split)
    return ImageFiles(image_folder, label_folder, meaning, _cityscapes if data.reader == "cityscapes" else _same_name)


class ImageFiles:
    """Images below one folder, and their label maps as PNG at the same path below another.

    Images without a label map, and label maps without an image, are left out and named in the log.
    """

    def __init__(
        self, folder: Path, label_folder: Path, labels: Labels, label_name: Callable[[Path], Path | None]
    ) -> None:
        self.folder, self.labels, self.source = folder, labels, str(folder)
        found = {path.relative_to(folder): path for path in _listed(folder, images.SUFFIXES)}
        maps = {path.relative_to(label_folder): path for path in _listed(label_folder, (".png",))}
        named = {path: label_name(path) for path in found}
        self.pairs = [(found[path], maps[label]) for path, label in named.items() if label in maps]
        used = {label for label in named.values() if label is not None}
        alone = [str(found[path]) for path, label in named.items() if label is not None and label not in maps]
        _warn(alone, f"image without a label map in {label_folder}")
        if label_name is _same_name:  # a folder of Cityscapes has other files of each image
            _warn([str(maps[path]) for path in maps if path not in used], f"label map without an image in {folder}")
        if not self.pairs:
            example = f"; {next(iter(named.values()))} is not in it" if any(named.values()) else ""
            raise InputError(f"no image in {folder} has a label map (.png) in {label_folder}{example}")

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        return str(self.pairs[index][0])

    def read(self, index: int) -> tuple[Image.Image, Array]:
        image_path, label_path = self.pairs[index]
        values = _read_values(label_path)
        image, size = images.read(image_path), values.shape[::-1]
        if image.size != size and image.size == size[::-1]:  # labelled as it is stored, not as EXIF data rotate it
            image = images.read(image_path, upright=False)
        if image.size != size:
            raise InputError(
                f"is {image.width} x {image.height} pixels, and its label map {label_path} {size[0]} x {size[1]}"
            )
        return image, self.labels.indices(values)


class GeneratedShapes:
    """Shapes that overlap, in memory; everything else is background."""

    def __init__(self, split: Literal["train", "val"], count: int, size: int, seed: int) -> None:
        self.labels = labels_of({"classes": ["background", *shapes.CLASSES]}, "shapes")
        self.source, self.split, self.size, self.seed = f"shapes ({split})", split, size, seed
        self.samples = [self._draw(number) for number in range(1, count + 1)]

    def _draw(self, number: int) -> tuple[Array, Array]:
        pixels, objects = shapes.draw(self.split, number, self.size, self.seed)
        indices = np.zeros((self.size, self.size), dtype=np.uint8)
        for category, mask in objects:
            indices[mask] = category
        return pixels, indices

    def __len__(self) -> int:
        return len(self.samples)

    def name(self, index: int) -> str:
        return f"{self.source} {index + 1}"

    def read(self, index: int) -> tuple[Image.Image, Array]:
        pixels, indices = self.samples[index]
        return Image.fromarray(pixels), indices


# ---- files ----


def _read_values(path: Path) -> Array:
    """The numbers in a label map; of a palette, the indices and not the colours."""
    try:
        with Image.open(path, formats=("PNG",)) as image:
            images.check_size(*image.size)
            if image.mode not in _ONE_CHANNEL:
                raise InputError(
                    f"has a label map {path} of colours ({image.mode}): expected one channel, with the number of a "
                    "class in each pixel"
                )
            return np.asarray(image).astype(np.int64) // _grey_step(path)
    except InputError:
        raise
    except Exception as error:  # Pillow's decoder raises whatever it meets in a broken file
        raise InputError(f"has a label map {path} that can't be decoded: {error or type(error).__name__}") from None


def _grey_step(path: Path) -> int:
    """What Pillow multiplies the numbers of a PNG with: it stretches grey of 2 and 4 bits to 0 to 255."""
    with path.open("rb") as file:
        depth, colours = file.read(_DEPTH + 2)[_DEPTH:]
    return 255 // (2**depth - 1) if colours == _GREY and depth in (2, 4) else 1


def _listed(folder: Path, suffixes: Sequence[str] | frozenset[str]) -> list[Path]:
    listing = list_files(folder, suffixes, hidden=False)
    listing.warn(folder)
    if listing.unreadable:
        path, reason = listing.unreadable[0]
        raise InputError(f"{path} can't be listed: {reason}")
    return sorted(map(Path, listing.files))


def _warn(paths: Sequence[str], what: str) -> None:
    for path in paths[:_NAMED]:
        logger.warning("%s, left out: %s", what, path)
    if len(paths) > _NAMED:
        logger.warning("%s: %d more left out", what, len(paths) - _NAMED)


# ---- layouts ----


def _folders(data: SegmentationData, root: Path, split: Split) -> tuple[Path, Path]:
    """The folders of the images and of the label maps of a split."""
    stated = {"train": (data.train_images, data.train_labels), "val": (data.val_images, data.val_labels)}
    given = stated.get(split, (None, None))
    if all(given):
        tried = [(root / str(given[0]), root / str(given[1]))]
    elif any(given):
        raise InputError(f"data.{split}_images and data.{split}_labels belong together: give both")
    elif data.reader == "cityscapes":
        tried = [(root / "leftImg8bit" / split, root / "gtFine" / split)]
    else:
        tried = [
            pair
            for name in _NAMES[split]
            for pair in (
                (root / name, root / f"{name}_labels"),
                (root / "images" / name, root / "labels" / name),
                (root / "images" / name, root / "annotations" / name),
            )
        ]
    for pair in tried:
        if all(folder.is_dir() for folder in pair):
            return pair
    first = " and ".join(str(folder.relative_to(root)) for folder in tried[0])
    others = f" (or {' and '.join(str(folder.relative_to(root)) for folder in tried[1])})" if len(tried) > 1 else ""
    raise InputError(f"{root} has no folders {first}{others}, for the images and label maps of the split {split}")


def _same_name(image: Path) -> Path:
    return image.with_suffix(".png")


def _cityscapes(image: Path) -> Path | None:
    """city/city_000000_000019_gtFine_labelIds.png for city/city_000000_000019_leftImg8bit.png."""
    stem = image.stem.removesuffix("_leftImg8bit")
    return None if stem == image.stem else image.with_name(f"{stem}_gtFine_labelIds.png")


def _labels(data: SegmentationData, root: Path) -> Labels | None:
    """What the recipe says, or a file of the data set."""
    if data.labels is not None:
        return labels_of(data.labels, "data.labels")
    if (root / "labels.yaml").is_file():
        return read_labels(root / "labels.yaml")
    return _ade20k(root / _OBJECTS) if data.reader == "ade20k" else None


def _ade20k(path: Path) -> Labels:
    """From a table of 150 rows, of which the first column is the value of a class and the last its name."""
    try:
        with open_regular(path) as file:
            lines = file.read().decode().splitlines()[1:]
        rows = [line.split("\t") for line in lines if line.strip()]
        entries = [{"name": row[-1].strip(), "value": int(row[0])} for row in rows]
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"can't read ADE20K's classes from {path} ({error}): name a file with data.labels") from None
    return labels_of({"ignore": 0, "classes": entries}, str(path))
