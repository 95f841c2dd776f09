"""Checkpoints: written whole or not at all, read without running code from the file."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

from laplacianformer.errors import InputError
from laplacianformer.files import replacing
from laplacianformer.recipes import AnyRecipe, as_yaml

NAME = "checkpoint.pt"
# What may differ between a run and its continuation. The number of processes changes what is random in a step, so
# only with the same number are results the same.
FREE = {"data": ("root", "workers"), "run": ("accelerator", "devices", "num_nodes", "checkpoint_steps", "tensorboard")}


def exists(folder: Path) -> bool:
    return (folder / NAME).exists()


def save(folder: Path, state: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with writing(folder / NAME), replacing(folder / NAME) as file:
        file.write(buffer.getbuffer())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes `path`: a full disk or a missing permission becomes one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror or error}") from None


def load(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is not one of its own
        raise InputError(f"can't read the checkpoint {path}: {' '.join(str(error).split())[:200]}") from None
    return state


def clean(folder: Path) -> None:
    """Remove what a process that was killed while writing left behind."""
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)


def check_same_run(state: dict[str, Any], recipe: AnyRecipe, classes: tuple[str, ...], folder: Path) -> None:
    """A checkpoint continues only the run that it is from."""
    if state["classes"] != list(classes):
        raise InputError(
            f"the checkpoint in {folder} has {len(state['classes'])} classes ({_few(state['classes'])}), "
            f"the data {len(classes)} ({_few(classes)}): give the data of that run, or another --output"
        )
    changed = differences(_fixed(state["recipe"]), _fixed(as_yaml(recipe)))
    if changed:
        raise InputError(
            f"the run in {folder} was started with another {', '.join(changed)}: "
            "resume it with the same recipe, or give another --output"
        )


def _few(names: Any) -> str:
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])


def _fixed(recipe: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(recipe)
    return {
        section: {key: value for key, value in keys.items() if key not in FREE.get(section, ())}
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
