"""Files with a checksum of their content at the end: damage is found before anything is used."""

import hashlib
from pathlib import Path

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import open_regular, replacing

_MARK = b"\nlaplacianformer sha256 "
_LENGTH = len(_MARK) + 64


def write_sealed(path: Path, content: bytes | memoryview, *, keep: Path | None = None) -> None:
    """Write a file, whole or not at all. What it replaces stays under the name `keep`, if one is given."""
    with replacing(path, keep=keep) as file:
        file.write(content)
        file.write(_MARK + hashlib.sha256(content).hexdigest().encode())


def read_sealed(path: Path) -> tuple[memoryview, bool]:
    """The content, and whether there was a checksum; files from before there were any have none."""
    try:
        with open_regular(path) as file:
            data = memoryview(file.read())
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror or error}") from None
    content, seal = data[:-_LENGTH], bytes(data[-_LENGTH:])
    if not seal.startswith(_MARK):
        return data, False
    if hashlib.sha256(content).hexdigest().encode() != seal[len(_MARK) :]:
        raise InputError(f"{path} is damaged: its content does not have the checksum that was written with it")
    return content, True
