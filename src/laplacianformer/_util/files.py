"""Files that are written whole or not at all."""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from laplacianformer._util.errors import InputError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes `path`: a full disk or a missing permission becomes an InputError of one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror or error}") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which replaces `path` only when the block ends without an error.

    Until then the bytes are in a file beside it, so that a crash or a full disk leaves `path` as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    with replacing(path) as file:
        file.write(f"{json.dumps(value, indent=2)}\n".encode())


def check_folder(folder: Path) -> None:
    """Raise now what writing into this folder would raise at the end of a long run. Leaves nothing behind."""
    with writing(folder):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass


def check_file(path: Path) -> None:
    """The same for one file."""
    if path.is_dir():
        raise InputError(f"can't write {path}: it is a folder")
    check_folder(path.parent)


class UnusedPaths:
    """Paths in a folder for files that may have the same name, none of them one of the `protected` paths."""

    def __init__(self, folder: Path, protected: Iterable[Path]) -> None:
        self.folder, self.used = folder, {path.resolve() for path in protected}

    def next(self, stem: str, suffix: str) -> Path:
        """folder/stem.suffix, or stem-2, stem-3, ..."""
        path, number = self.folder / f"{stem}{suffix}", 1
        while path.resolve() in self.used:
            number += 1
            path = self.folder / f"{stem}-{number}{suffix}"
        self.used.add(path.resolve())
        return path
