"""What the entries of a checkpoint are: a file that was made by hand, or by other code, gets one clear line."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer.training._recipes import parse_yaml


def check_form(state: Any, path: Path) -> None:
    """Raise unless a file has the entries of a checkpoint, each of the right type."""
    if not isinstance(state, Mapping):
        raise InputError(f"{path} is not a checkpoint: expected a dictionary, got {_kind(state)}")
    missing = [key for key in _FORM if key not in state]
    if missing:
        raise InputError(f"{path} is not a checkpoint of this version (no {', '.join(missing)})")
    for key, (fits, expected) in (_FORM | _OPTIONAL).items():
        if key in state and not fits(state[key]):
            raise InputError(f"{path} is not a checkpoint: {key} must be {expected}, got {_said(state[key])}")


def _kind(value: Any) -> str:
    return type(value).__name__


def _said(value: Any) -> str:
    simple = isinstance(value, (int, float, str, type(None)))
    return f"{_kind(value)} {str(value)[:40]!r}" if simple else f"{_kind(value)} with other contents"


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return limits.finite(value)


def _tensors(value: Any) -> bool:
    named = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    return named and len(value) > 0 and all(_is_whole(tensor) for tensor in value.values())


def _is_whole(value: Any) -> bool:
    """Whether it is a tensor with its numbers, all of them."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta


def _sums(value: Any) -> bool:
    return (
        _is_whole(value)
        and value.dtype == torch.float64
        and value.ndim == 1
        and bool(value.isfinite().all())
        and value[-1:].tolist() >= [0.0]
    )


def _seconds(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(_number(each) and each >= 0 for each in value)


def _recipe(value: Any) -> bool:
    try:
        tree = parse_yaml(value, "the recipe") if isinstance(value, str) else None
    except InputError:
        return False
    return isinstance(tree, dict) and all(
        isinstance(name, str) and isinstance(section, dict) and all(isinstance(key, str) for key in section)
        for name, section in tree.items()
    )


def _optimiser(value: Any) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("state"), Mapping):
        return False
    groups = value.get("param_groups")
    parts = [part for entry in value["state"].values() if isinstance(entry, Mapping) for part in entry.values()]
    return (
        isinstance(groups, list)
        and all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups)
        and all(isinstance(entry, Mapping) for entry in value["state"].values())
        and all(_is_whole(part) for part in parts if isinstance(part, Tensor))
    )


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _images(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(split, str) and (count is None or _count(count)) for split, count in value.items()
    )


_FORM: dict[str, tuple[Callable[[Any], bool], str]] = {
    "step": (_count, "a number of steps"),
    "model": (_tensors, "tensors by name"),
    "average": (lambda value: value is None or _tensors(value), "tensors by name, or None"),
    "optimiser": (_optimiser, "the state of an optimiser"),
    "sums": (_sums, "a row of finite sums in float64"),
    "seconds": (_seconds, "two numbers of seconds"),
    "recipe": (_recipe, "a recipe in YAML"),
    "classes": (_names, "a list of names"),
    "images": (_images, "numbers of images by split"),
}
_OPTIONAL: dict[str, tuple[Callable[[Any], bool], str]] = {  # which checkpoints of earlier versions don't have
    "metrics": (lambda value: isinstance(value, str), "the text of metrics.csv"),
    "sealed": (lambda value: value is True, "True"),
}
