"""Files that are written whole or not at all, and read only where they are regular files."""

import errno
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from laplacianformer._util.errors import InputError
from laplacianformer._util.text import to_json

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)  # Windows would change the ends of lines


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes `path`: a full disk or a missing permission becomes an InputError of one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror or error}") from None


@contextmanager
def replacing(path: Path, *, keep: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write to, which replaces `path` only when the block ends without an error.

    Until then the bytes are in a file beside it, so that a crash or a full disk leaves `path` as it was. A link stays,
    and what it leads to is replaced. A pipe or a device such as /dev/null gets all bytes at the end of the block.
    What is replaced stays under the name `keep`, if one is given; `path` is there at every moment.
    """
    with writing(path):
        if _takes_bytes(path):
            buffer = io.BytesIO()
            yield buffer
            with _open_special(path) as special:
                special.write(buffer.getbuffer())
            return
        target = _target(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _new(partial) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if keep is not None and target.exists():
                _also_as(target, keep)
            os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _new(path: Path) -> BinaryIO:
    """A file that nobody else has made: its name can be known before, and a link there would be followed."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _BINARY, 0o666), "wb")


def _target(path: Path) -> Path:
    """What a path leads to through links, whether or not it exists."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def _takes_bytes(path: Path) -> bool:
    """Whether it is a pipe, or a device that takes bytes one after the other. Raises for folders, disks and sockets."""
    if not path.exists():
        return False
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a disk" if stat.S_ISBLK(mode) else "neither a file nor a pipe"
        raise InputError(f"can't write {path}: it is {kind}")
    return False


def _open_special(path: Path) -> BinaryIO:
    """A pipe that nobody reads is an error at once; without O_NONBLOCK, opening it would wait for ever."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise InputError(f"can't write {path}: no program reads it") from None
        raise
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


def _also_as(path: Path, other: Path) -> None:
    """Let another name stand for the same file, in place of what it stands for now."""
    partial = other.with_name(f".{other.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(path, partial)
    except OSError:  # a file system without hard links
        with path.open("rb") as file, _new(partial) as copy:
            shutil.copyfileobj(file, copy)
    os.replace(partial, other)
    partial.unlink(missing_ok=True)  # it is still there where both were the same file already


def write_json(path: Path, value: Any) -> None:
    with replacing(path) as file:
        file.write(f"{to_json(value)}\n".encode())


def open_regular(path: Path) -> BinaryIO:
    """A file to read. Raises OSError also for a named pipe, a device or a socket, which may have no end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a pipe that nobody writes would wait for ever
        raise OSError("not a regular file")
    return path.open("rb")


def check_folder(folder: Path) -> None:
    """Raise now what writing into this folder would raise at the end of a long run. Leaves nothing behind."""
    with writing(folder):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass


def check_file(path: Path) -> None:
    """The same for one file, or for what a link, a pipe or a device leads to."""
    with writing(path):
        if _takes_bytes(path):
            if not os.access(path, os.W_OK):  # opening a pipe and closing it would end the program that reads it
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            check_folder(_target(path).parent)


class UnusedPaths:
    """Paths in a folder for files that may have the same name, none of them one of the `protected` paths."""

    def __init__(self, folder: Path, protected: Iterable[Path]) -> None:
        self.folder, self.used = folder, set(map(os.path.realpath, protected))

    def next(self, stem: str, suffix: str) -> Path:
        """folder/stem.suffix, or stem-2, stem-3, ..."""
        path, number = self.folder / f"{stem}{suffix}", 1
        while os.path.realpath(path) in self.used:
            number += 1
            path = self.folder / f"{stem}-{number}{suffix}"
        self.used.add(os.path.realpath(path))
        return path
