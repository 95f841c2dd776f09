"""Checkpoints: written whole or not at all, read without running code from the file."""

import io
import os
from pathlib import Path
from typing import Any

import torch

from laplacianformer.errors import InputError

NAME = "checkpoint.pt"


def write_whole(path: Path, content: bytes) -> None:
    """Replace `path` by `content` at once: after a crash at any moment it is the old file or the new one."""
    temporary = path.with_name(f"{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"can't write {path}: {error.strerror}") from None


def save(folder: Path, state: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_whole(folder / NAME, buffer.getvalue())


def load(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is not one of its own
        raise InputError(f"can't read the checkpoint {path}: {' '.join(str(error).split())[:200]}") from None
    return state


def exists(folder: Path) -> bool:
    return (folder / NAME).exists()
