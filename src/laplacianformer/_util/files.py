"""Files that are written whole or not at all."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from laplacianformer._util.errors import InputError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes `path`: a full disk or a missing permission becomes one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror or error}") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` only when the block ends without an error.

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
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass


def check_file(path: Path) -> None:
    """The same for one file."""
    if path.is_dir():
        raise InputError(f"can't write {path}: it is a folder")
    check_folder(path.parent)
