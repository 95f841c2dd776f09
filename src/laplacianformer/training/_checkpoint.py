"""Checkpoints: written whole or not at all, read without running code from the file."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import replacing
from laplacianformer.data._labels import few
from laplacianformer.training._recipe import AnyRecipe
from laplacianformer.training._recipes import as_yaml

_NAME = "checkpoint.pt"
_KEYS = ("step", "model", "average", "optimiser", "sums", "seconds", "recipe", "classes", "images")
# What may differ between a run and its continuation. The number of processes changes what is random in a step, so
# results are the same only with the same number.
_FREE = {"data": ("root", "workers"), "run": ("accelerator", "devices", "num_nodes", "checkpoint_steps", "tensorboard")}


def exists(folder: Path) -> bool:
    """Whether the folder has a checkpoint."""
    return (folder / _NAME).exists()


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint of the folder."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with replacing(folder / _NAME) as file:
        file.write(buffer.getbuffer())


def load(folder: Path) -> dict[str, Any]:
    """The checkpoint of the folder, on the CPU."""
    path = folder / _NAME
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is not one of its own
        raise InputError(f"can't read the checkpoint {path}: {' '.join(str(error).split())[:200]}") from None
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise InputError(f"{path} is not a checkpoint of this version (no {', '.join(missing)}): give another --output")
    return state


def clean(folder: Path) -> None:
    """Remove what a process that was killed while writing left behind."""
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)


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
            f"the run in {folder} was started with another {', '.join(changed)}: "
            "resume it with the same recipe, or give another --output"
        )
    for split, count in stated["images"].items():
        if state["images"][split] != count:
            raise InputError(
                f"the run in {folder} was started with {state['images'][split]} {split} images, the data has {count}: "
                "give the data of that run, or another --output"
            )


def _fixed(recipe: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(recipe)
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
