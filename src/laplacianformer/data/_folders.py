"""Folders and tar files with one folder per class. The class is the first level; deeper folders mean nothing."""

import logging
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import timm.data
from PIL import Image
from timm.data.readers.img_extensions import get_img_extensions
from timm.utils.misc import natural_key
from torchvision.datasets.folder import IMG_EXTENSIONS

from laplacianformer._util.errors import InputError
from laplacianformer.data import _images as images
from laplacianformer.data._indexed import Images, ReaderImages
from laplacianformer.data._walk import list_files

logger = logging.getLogger(__name__)

_SPLITS = ("train", "training", "val", "valid", "validation", "eval", "evaluation", "test")
_MOST_NAMED = 20  # classes whose numbers of images the log names


class FolderImages:
    """Image files by index, with the number of the class of each."""

    def __init__(self, root: str, files: Sequence[str], targets: Sequence[int], classes: Sequence[str]) -> None:
        self.root, self.files, self.targets, self.classes = root, files, targets, tuple(classes)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> tuple[Image.Image, int]:
        return images.read(Path(self.files[index])), self.targets[index]

    def name(self, index: int) -> str:
        return self.files[index]


def open_folder(path: Path, *, like_torchvision: bool = False) -> Images:
    """The images of path/CLASS/image, at any depth below CLASS; or of a tar with such a folder inside.

    like_torchvision: with the suffixes and in the order of torchvision's ImageFolder, which itself never ends where
    links lead to the folders around them; otherwise with those of timm.
    """
    return _open_folder(path, like_torchvision=like_torchvision) if path.is_dir() else _open_tar(path)


def _open_folder(path: Path, *, like_torchvision: bool) -> Images:
    suffixes: Collection[str] = IMG_EXTENSIONS if like_torchvision else get_img_extensions(as_set=True)
    files = sorted(listed(path, suffixes, "images"), key=os.path.split if like_torchvision else natural_key)
    inside = [os.path.dirname(os.path.relpath(file, path)) for file in files]
    targets, classes = by_class(path, files, inside, key=str if like_torchvision else natural_key)
    if like_torchvision:  # class by class, also where another character comes before the / of a subfolder
        order = sorted(range(len(files)), key=targets.__getitem__)
        files, targets = [files[index] for index in order], [targets[index] for index in order]
    check_used(path, classes, "images")
    return FolderImages(str(path), files, targets, classes)


def listed(path: Path, suffixes: Collection[str], kind: str) -> list[str]:
    """The files below a folder, in no order; what was left out is in the log. `kind` is what they are called there."""
    listing = list_files(path, suffixes, hidden=True)
    if listing.unreadable:
        folder, reason = min(listing.unreadable)
        raise InputError(f"can't list the folder {folder}: {reason}")
    listing.warn(path)
    if not listing.files:
        raise InputError(f"found no {kind} in {path} (looked for {', '.join(sorted(suffixes))})")
    return listing.files


def _open_tar(path: Path) -> Images:
    try:
        reader: Any = timm.data.create_dataset("", str(path), search_split=False).reader
    except (RuntimeError, ValueError, AssertionError, tarfile.TarError) as error:
        raise InputError(f"can't read {path}: {' '.join(str(error).split())}") from None
    # timm takes the innermost folder for the class.
    inside = [_folder_in_tar(*sample) for sample in reader.samples]
    names = [sample[0].name for sample in reader.samples]
    targets, classes = by_class(path, names, _without_outer(path, inside))
    reader.targets = np.array(targets)
    return ReaderImages(reader, classes)


def _folder_in_tar(image: tarfile.TarInfo, _: str | None, inner: tarfile.TarInfo | None) -> str:
    """The folder of an image; a tar inside the tar counts as a folder."""
    outer = os.path.splitext(os.path.basename(inner.name))[0] if inner is not None else ""
    folder = os.path.normpath(os.path.join(outer, os.path.dirname(image.path)))
    return "" if folder == "." else folder


def _without_outer(path: Path, folders: list[str]) -> list[str]:
    """Without the outer folders that all images of a tar are in: train/ in train/CLASS/image.

    The last of them has the name of the tar or of a split. Another folder that all are in may be the only class.
    """
    parts = [folder.split("/") for folder in folders]
    shared = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))]
    names = {*_SPLITS, path.name.partition(".")[0]}
    outer = max((level for level, name in enumerate(shared, 1) if name in names), default=0)
    if shared and not outer and min(map(len, parts)) > 1:
        raise InputError(
            f"{path} has all its images in subfolders of {shared[0]}, which may be around the classes or the only one: "
            f"expected CLASS/image for several classes, or {path.name.partition('.')[0]}/CLASS/image"
        )
    return ["/".join(each[outer:]) for each in parts]


def by_class(
    path: Path,
    names: Sequence[str],
    inside: Sequence[str],
    key: Callable[[str], Any] = natural_key,
    kind: str = "images",
) -> tuple[list[int], list[str]]:
    """Numbers and names of the classes, by the folder in which each file is."""
    first = [folder.split(os.sep, 1)[0] for folder in inside]
    if "" in first:
        stray = names[first.index("")]
        raise InputError(f"{stray} lies outside the class folders: expected {path}/CLASS/image")
    classes = sorted(set(first), key=key)
    numbers = {name: number for number, name in enumerate(classes)}
    deeper = sum(os.sep in folder for folder in inside)
    if deeper:
        counts = Counter(first)
        said = ", ".join(f"{name} {counts[name]}" for name in classes[:_MOST_NAMED])
        more = f" and {len(classes) - _MOST_NAMED} more classes" if len(classes) > _MOST_NAMED else ""
        logger.warning(
            "%s: %d %s are in subfolders of the class folders and count for the class: %s%s",
            *(path, deeper, kind, said, more),
        )
    return [numbers[name] for name in first], classes


def check_used(path: Path, classes: Collection[str], kind: str) -> None:
    """Raise if a folder has no files of its own. A link to a folder around it is not a class, and was left out."""
    real = Path(os.path.realpath(path))  # Path.resolve raises where a link leads to itself
    for entry in sorted(path.iterdir()):
        around = entry.is_symlink() and real.is_relative_to(os.path.realpath(entry))
        if entry.is_dir() and not around and entry.name not in classes:
            raise InputError(f"{entry} has no {kind} of its own: every class needs at least one")
