"""Byte texts from folders of labelled files and from tables of pairs. Bytes are bytes: any encoding will do.

    DIR/{train,test}/{pos,neg}/*.txt          one text per file, one folder per class, at any depth (IMDb's layout)
    DIR/NAME.{train,eval,test}.tsv            label, id, id, text, text in each line (Long Range Arena's layout)

Files are checked when they are opened, and read when they are needed. Token k is the byte k - 1; 0 is padding.
"""

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import open_regular
from laplacianformer.data._folders import by_class, check_used, listed

VOCABULARY = 257
PAIR_CLASSES = ("different", "same")
SUFFIXES = (".txt",)
_KIND = "*.txt files"
_UNLABELLED = "unsup"
_COLUMNS = 5  # label, two ids, two texts
_LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
_TRAINING = ("train", "training")
_HELD_OUT = ("validation", "val", "valid", "eval", "test")

Array = np.ndarray[Any, Any]
Once = Callable[[Callable[[], Any]], Any]


def encode(text: bytes, length: int) -> Array:
    """Tokens of the first `length` bytes."""
    return np.frombuffer(text[:length], np.uint8).astype(np.int16) + 1


def read_text(path: Path, length: int) -> Array:
    """Tokens of a text file, if it has any."""
    try:
        with open_regular(path) as file:
            text = file.read(length)
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror or error}") from None
    if not text:
        raise InputError(f"{path} is empty: expected a text of at least one byte")
    return encode(text, length)


def _check_not_empty(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:  # a link to nothing
        raise InputError(f"can't read {path}: {error.strerror or error}") from None
    if size == 0:
        raise InputError(f"{path} is empty: expected a text of at least one byte")


class TextFolder:
    """Texts by index. Their class is the folder at the first level; deeper folders mean nothing."""

    def __init__(self, root: Path, split: str, length: int) -> None:
        folder = _of_split(root, split, lambda name: root / name, "/CLASS/*.txt")
        self.length = length
        inside = {path: path.relative_to(folder).parent for path in sorted(map(Path, listed(folder, SUFFIXES, _KIND)))}
        # IMDb has lists of addresses and a folder of texts without labels beside the folders of the two classes.
        paths = [path for path, below in inside.items() if below.parts and below.parts[0] != _UNLABELLED]
        targets, classes = by_class(folder, list(map(str, paths)), [str(inside[path]) for path in paths], str, _KIND)
        check_used(folder, {*classes, _UNLABELLED}, _KIND)
        if len(classes) < 2:
            raise InputError(f"{folder} has {len(classes)} folders of texts: expected one for each class")
        self.classes, self.samples = tuple(classes), list(zip(paths, targets, strict=True))
        for path in paths:
            _check_not_empty(path)

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> tuple[Array, int]:
        path, target = self.samples[index]
        return read_text(path, self.length), target

    def name(self, index: int) -> str:
        return str(self.samples[index][0])


class TextPairs:
    """Pairs of texts by index. The table stays on the disk; memory: 8 bytes per line."""

    classes = PAIR_CLASSES

    def __init__(self, root: Path, split: str, length: int) -> None:
        self.path, self.length = _of_split(root, split, lambda name: _table(root, name), ".tsv"), length
        self.offsets = array("q")
        offset = 0
        try:
            with open_regular(self.path) as file:
                for number, line in enumerate(file, 1):
                    _columns(line, self.path, number)
                    self.offsets.append(offset)
                    offset += len(line)
        except OSError as error:
            raise InputError(f"can't read {self.path}: {error.strerror or error}") from None
        if not self.offsets:
            raise InputError(f"{self.path} is empty: expected lines of label, id, id, text, text, between tabs")

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, index: int) -> tuple[tuple[Array, Array], int]:
        with self.path.open("rb") as file:
            file.seek(self.offsets[index])
            target, first, second = _columns(file.readline(), self.path, index + 1)
        return (encode(first, self.length), encode(second, self.length)), target

    def name(self, index: int) -> str:
        return f"{self.path}, line {index + 1}"


def _columns(line: bytes, path: Path, number: int) -> tuple[int, bytes, bytes]:
    """Label and texts of a line."""
    columns = line.rstrip(b"\r\n").split(b"\t")
    if len(columns) != _COLUMNS:
        raise InputError(
            f"{path}, line {number}: {len(columns)} columns, expected {_COLUMNS} between tabs: label, id, id, texts"
        )
    if columns[0] not in _LABELS:
        given = columns[0].decode(errors="replace")[:40]
        raise InputError(f"{path}, line {number}: the label {given!r}, expected 0 or 1")
    for column in (3, 4):
        if not columns[column]:
            raise InputError(f"{path}, line {number}: column {column + 1} is empty, expected a text")
    return _LABELS[columns[0]], columns[3], columns[4]


def _table(root: Path, name: str) -> Path:
    """root/NAME.tsv, or the first root/*.NAME.tsv."""
    return next(iter(sorted(root.glob(f"*.{name}.tsv"))), root / f"{name}.tsv")


def _of_split(root: Path, split: str, path_of: Callable[[str], Path], kind: str) -> Path:
    """The folder or the table of a split, under one of its names."""
    if not root.is_dir():
        raise InputError(f"there is no folder {root}: give --data a folder that exists")
    others = _TRAINING if split in _TRAINING else _HELD_OUT if split in _HELD_OUT[:-1] else ()
    names = list(dict.fromkeys([split, *others]))
    for name in names:
        if path_of(name).exists():
            return path_of(name)
    raise InputError(f"{root} has no {' or '.join(names)}: expected {root}/{names[0]}{kind}")
