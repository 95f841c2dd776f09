"""Checkpoints: written whole or not at all, with a checksum, and read without running code from the file.

The one before the last is kept: it is there to continue from when the disk has damaged the last.
"""

import io
import logging
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from laplacianformer._util.errors import InputError
from laplacianformer._util.sealed import read_sealed, write_sealed
from laplacianformer.data._labels import few
from laplacianformer.training._checkpoint_form import check_form
from laplacianformer.training._recipe import AnyRecipe
from laplacianformer.training._recipes import as_yaml, parse_yaml

logger = logging.getLogger(__name__)

_NAME = "checkpoint.pt"
_PREVIOUS = "checkpoint.previous.pt"
# What may differ between a run and its continuation. The number of processes changes what is random in a step, so
# results are the same only with the same number.
_UNFIT = AssertionError, AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError
_FREE = {"data": ("root", "workers"), "run": ("accelerator", "devices", "num_nodes", "checkpoint_steps", "tensorboard")}


def exists(folder: Path) -> bool:
    """Whether the folder has a checkpoint."""
    return _path(folder).exists()


def _path(folder: Path) -> Path:
    """The checkpoint to continue from: the last, or the one before where someone has removed the last."""
    previous = folder / _PREVIOUS
    return previous if previous.exists() and not (folder / _NAME).exists() else folder / _NAME


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint of the folder, and keep the one that was there."""
    buffer = io.BytesIO()
    torch.save({**state, "sealed": True}, buffer)
    write_sealed(folder / _NAME, buffer.getbuffer(), keep=folder / _PREVIOUS)


def load(folder: Path) -> dict[str, Any]:
    """The checkpoint of the folder, on the CPU, if it is as it was written."""
    path = _path(folder)
    try:
        state = _read(path)
    except InputError as error:
        raise InputError(f"{error}; {_way_out(folder, path)}") from None
    if path.name == _PREVIOUS:
        logger.warning("there is no %s: continuing from the checkpoint before it, step %d", _NAME, state["step"])
    return state


def _read(path: Path) -> dict[str, Any]:
    content, sealed = read_sealed(path)
    try:
        if not sealed and (damaged := zipfile.ZipFile(io.BytesIO(content)).testzip()):
            raise InputError(f"{path} is damaged: the part {damaged} does not have its checksum")
        state: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # torch raises many kinds for a file that is not one of its own
        raise InputError(f"can't read the checkpoint {path}: {' '.join(str(error).split())[:200]}") from None
    check_form(state, path)
    if state.get("sealed") and not sealed:
        raise InputError(f"{path} is damaged: the checksum at its end is missing")
    return state


def _way_out(folder: Path, path: Path) -> str:
    """What to do about a checkpoint that can't be used."""
    previous = folder / _PREVIOUS
    if path != previous and previous.exists():
        try:
            step = _read(previous)["step"]
        except InputError:
            return f"the one before it, {previous}, can't be used either: give another --output"
        return (
            f"the one before it, {previous} of step {step}, is whole: remove {path}, and --resume continues from there"
        )
    return "there is none before it: give another --output"


def clean(folder: Path) -> None:
    """Remove what a process that was killed while writing left behind."""
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)


@contextmanager
def fitting(folder: Path, what: str) -> Iterator[None]:
    """A block that takes a part of a checkpoint over: whatever does not fit becomes an InputError of one line."""
    try:
        yield
    except _UNFIT as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"the {what} in the checkpoint of {folder} can't be used ({reason}): give another --output"
        ) from None


def identity(recipe: AnyRecipe, classes: tuple[str, ...], images: Mapping[str, int | None]) -> dict[str, Any]:
    """The entries of a checkpoint that say which run it is from."""
    return {"recipe": as_yaml(recipe), "classes": list(classes), "images": dict(images)}


def check_same_run(state: Mapping[str, Any], stated: Mapping[str, Any], folder: Path) -> None:
    """Refuse a checkpoint that has another `identity` than what is stated: recipe, classes, numbers of images."""
    if state["classes"] != stated["classes"]:
        raise InputError(
            f"the checkpoint in {folder} has {len(state['classes'])} classes ({few(state['classes'])}), the data has "
            f"{len(stated['classes'])} ({few(stated['classes'])}): give the data of that run, or another --output"
        )
    changed = differences(_fixed(state["recipe"]), _fixed(stated["recipe"]))
    if changed:
        raise InputError(
            f"the run in {folder} was started with another {few(changed)}: "
            "resume it with the same recipe, or give another --output"
        )
    for split, count in stated["images"].items():
        before = state["images"].get(split)
        if before != count:
            raise InputError(
                f"the run in {folder} was started with {before} {split} images, the data has {count}: "
                "give the data of that run, or another --output"
            )


def _fixed(recipe: str) -> dict[str, Any]:
    tree: dict[str, Any] = parse_yaml(recipe, "the recipe")
    return {
        section: {key: value for key, value in keys.items() if key not in _FREE.get(section, ())}
        for section, keys in tree.items()
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys whose values differ."""
    found = []
    for key in sorted({*old, *new}):
        left, right, name = old.get(key), new.get(key), f"{prefix}{key}"
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += differences(left, right, f"{name}.")
        elif left != right:
            found.append(name)
    return found
