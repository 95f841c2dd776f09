"""Trained weights in one safetensors file that describes itself.

The metadata holds, each as text: `format` and `task`; `architecture`, a name for timm.create_model; `model_args`, its
arguments (JSON); `input`, what the model expects (JSON: size, mean, std, interpolation, crop_pct); `classes` (JSON
list); for a converted model `converted`, which attention is in which layers (JSON), and `converted_from`, the model
that it was (JSON); `sha256`, a checksum of the tensors; and whatever the writer adds, such as recipe, metrics, commit,
date and version.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from laplacianformer import assets as shipped
from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import (
    check_tensors,
    expected_tensors,
    json_entry,
    load_described,
    read_header,
    read_metadata,
    state_dict,
    write_tensors,
)
from laplacianformer.model import LaplacianFormer
from laplacianformer.model._conversion import conversion_of, described, exchange
from laplacianformer.model._image_size import fixed_size

FORMAT = "laplacianformer 2"
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
_KEYS = ("task", "architecture", "model_args", "input", "classes")
# What holds the weights of a task, and the command that takes them beside eval.
_TASKS = {
    "classification": ("classifier", "predict"),
    "detection": ("detector", "detect"),
    "segmentation": ("segmenter", "segment"),
    "sequences": ("sequence encoder", "predict"),
}
# Arguments of timm.create_model that read files or download something: no weights file may set them.
FORBIDDEN = frozenset({"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"})


@dataclass(frozen=True)
class Weights:
    """A model in evaluation mode and what its file says about it."""

    model: nn.Module
    classes: tuple[str, ...]
    input: dict[str, Any]  # size (channels, height, width), mean, std, interpolation, crop_pct
    metadata: dict[str, str]
    path: Path


def save_weights(
    path: Path | str,
    model: nn.Module,
    *,
    classes: Sequence[str],
    metadata: Mapping[str, str],
    dtype: torch.dtype | None = None,
) -> None:
    """Write the model to one safetensors file, whole or not at all.

    Args:
        classes: names of the outputs, in order.
        metadata: what else the file should say. `architecture`, `model_args` and `input` in it replace those that the
            model states by itself.
        dtype: of the parameters in the file, for example torch.float16. Buffers (a few statistics) keep theirs.
    """
    path = Path(path)
    stated = checked_metadata(path, model, classes, metadata)
    write_tensors(path, state_dict(model, dtype), stated)


def checked_metadata(
    path: Path,
    model: nn.Module,
    classes: Sequence[str],
    metadata: Mapping[str, str],
    *,
    expected: Mapping[str, Tensor] | None = None,
) -> dict[str, str]:
    """What `save_weights` would write, or its error: a file that can't be read back is not written.

    expected: the tensors of the model that the metadata describes, where they are known; otherwise one is built on the
        meta device to compare with.
    """
    stated = {**_own_metadata(model), "classes": json.dumps(list(classes)), **metadata}
    wrong = [key for key, value in stated.items() if not isinstance(value, str)]
    if wrong:
        raise TypeError(f"metadata of weights must be text, got other types for {', '.join(wrong)}")
    _check(path, stated, model.state_dict(), expected)
    return stated


def load_weights(path: Path | str, *, model_args: Mapping[str, Any] | None = None) -> Weights:
    """The model of a file of `save_weights`, in float32 and evaluation mode. Nothing is downloaded or executed.

    model_args: arguments of timm.create_model to change, such as drop_path_rate; none that changes its tensors.
    """
    path = Path(path)
    header, metadata = read_header(path)
    arguments, classes, model_input = _check(path, metadata, header)
    if model_args:
        arguments = {**arguments, **model_args}
        metadata = {**metadata, "model_args": json.dumps(arguments)}
    # Arguments of the caller raise what timm raises: the file is not to blame.
    with nullcontext() if model_args else _asking(path, metadata, arguments):
        model = _created(path, metadata, arguments)
    _check_fixed_size(path, model, model_input["size"])
    load_described(model, path, metadata["architecture"])
    return Weights(model.eval(), classes, model_input, metadata, path)


def read_description(path: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Architecture, arguments and input of the model of a file, without its tensors."""
    header, metadata = read_header(path)
    arguments, _, model_input = _check(path, metadata, header)
    return metadata["architecture"], arguments, model_input


def load_chosen(path: Path | None) -> Weights:
    """The weights of a file, or without a path those inside the package."""
    if path is not None:
        return load_weights(path)
    if not shipped.PATH.is_file():
        raise InputError(
            f"this installation has no weights of its own (assets/{shipped.PATH.name} is missing): "
            "pass --weights FILE, or install a release that ships them"
        )
    return load_weights(shipped.PATH)


def _own_metadata(model: Any) -> dict[str, str]:
    """What the model states about itself: its timm name, its arguments if it is ours, the input it expects."""
    if not hasattr(model, "pretrained_cfg"):
        raise TypeError(f"expected a model from timm.create_model, got a {type(model).__name__} without a timm name")
    config = resolve_model_data_config(model)
    config["size"] = config.pop("input_size")
    model_input = {key: config[key] for key in ("size", "mean", "std", "interpolation", "crop_pct")}
    given = model.arguments if isinstance(model, LaplacianFormer) else {}
    try:
        arguments = json.dumps({**given, "num_classes": model.num_classes})
    except TypeError as error:
        raise InputError(f"the model's arguments can't be written to a weights file: {error}") from None
    return {
        "format": FORMAT,
        "task": "classification",
        "architecture": model.pretrained_cfg["architecture"],
        "model_args": arguments,
        "input": json.dumps(model_input),
        **described(model),
    }


def with_defaults_of_file(metadata: Mapping[str, str], arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a model with Laplacian attention, with the defaults of the time when its file was written.

    Up to format 1 the default gain was 1.
    """
    options = arguments.get("attention_args") or {}
    laplacian = arguments.get("attention", "laplacian") in ("laplacian", "ablation")
    if metadata.get("format", "") not in ("", "laplacianformer 1") or not laplacian or "gain" in options:
        return arguments
    return {**arguments, "attention_args": {**options, "gain": 1.0}}


def stated_task(path: Path | None) -> str:
    """The task that the weights of a file are for, such as "classification"; empty if it doesn't say so.

    None: the weights inside the package, which are a classifier's.
    """
    return "classification" if path is None else read_metadata(path).get("task", "")


def task_name(task: str) -> str:
    """What holds the weights of a task: "classifier", for example."""
    return _TASKS[task][0]


def check_task(path: Path, metadata: Mapping[str, str], expected: str) -> None:
    """Refuse weights for another task, and say which commands take them."""
    task, (wanted, _) = metadata.get("task", expected), _TASKS[expected]
    if task not in _TASKS:
        raise InputError(f"{path} holds weights for {limits.one_line(task)}: expected a {wanted}")
    if task != expected:
        found, command = _TASKS[task]
        raise InputError(f"{path} holds a {found}: expected a {wanted}; laplacianformer {command} and eval take it")


def _check(
    path: Path,
    metadata: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]:
    """Model arguments, classes and input of a file, if they are consistent with each other and with the tensors."""
    check_task(path, metadata, "classification")
    missing = [key for key in _KEYS if key not in metadata]
    if missing:
        raise InputError(
            f"{path} does not say what it holds (no {', '.join(missing)} in its metadata): "
            "expected a file written by laplacianformer.weights.save_weights"
        )
    if not timm.is_model(metadata["architecture"]):
        raise InputError(
            f"{path} holds a {limits.shown(metadata['architecture'])}, which this version of the package doesn't know"
        )
    arguments, classes, stated = (json_entry(path, metadata, key) for key in ("model_args", "classes", "input"))
    if not isinstance(arguments, dict) or FORBIDDEN & arguments.keys():
        raise InputError(f"{path} has model_args that are not allowed: {limits.one_line(metadata['model_args'])}")
    limits.check_arguments(arguments, f"model_args in the metadata of {path}")
    if metadata["architecture"].startswith("laplacianformer_"):
        arguments = with_defaults_of_file(metadata, arguments)
    if expected is None:
        expected = _expected_tensors(path, metadata, arguments)
    check_tensors(path, metadata["architecture"], expected, tensors)
    return arguments, _checked_classes(path, classes, arguments), _checked_input(path, stated, arguments)


def _created(path: Path, metadata: Mapping[str, str], arguments: dict[str, Any]) -> nn.Module:
    """The model that the metadata describes, with random weights."""
    model: nn.Module = timm.create_model(metadata["architecture"], **arguments)
    if "converted" in metadata:
        exchange(model, conversion_of(json_entry(path, metadata, "converted"), f"converted in the metadata of {path}"))
    return model


def _check_fixed_size(path: Path, model: nn.Module, size: Sequence[int]) -> None:
    """Refuse an input that the model can't take: many vision transformers are built for one image size."""
    fixed = fixed_size(model)
    if fixed is not None and fixed != tuple(size[1:]):
        raise InputError(
            f"{path} states an input of {size[1]} x {size[2]} pixels, and its model takes {fixed[0]} x {fixed[1]} alone"
        )


def _expected_tensors(path: Path, metadata: Mapping[str, str], arguments: dict[str, Any]) -> dict[str, Tensor]:
    """Names and shapes of the model's tensors, without memory for them."""
    what = f"the {metadata['architecture']} of {path}"
    with _asking(path, metadata, arguments):
        return expected_tensors(lambda: _created(path, metadata, arguments), what)


@contextmanager
def _asking(path: Path, metadata: Mapping[str, str], arguments: dict[str, Any]) -> Iterator[None]:
    """A block that builds what a file asks for."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever arguments that nobody expected make the parts of a model raise
        raise InputError(
            f"{path} asks for a {metadata['architecture']} that can't be built with {limits.shown(arguments)}: "
            f"{limits.reason(error)}"
        ) from None


def _checked_classes(path: Path, classes: Any, arguments: dict[str, Any]) -> tuple[str, ...]:
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise InputError(f"{path} has classes that are not a list of names: {limits.shown(classes)}")
    outputs = arguments.get("num_classes")
    if len(classes) != outputs or len(set(classes)) != outputs:
        raise InputError(f"{path} has {len(set(classes))} distinct class names for a model with {outputs} outputs")
    return tuple(classes)


def _checked_input(path: Path, stated: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    channels = arguments.get("in_chans", 3)
    try:
        side = stated["size"]  # one number for square images
        size = (channels, side, side) if isinstance(side, int) else tuple(int(length) for length in side)
        mean, std = ([float(number) for number in stated[key]] for key in ("mean", "std"))
        interpolation, crop_pct = str(stated["interpolation"]), float(stated["crop_pct"])
        fits = len(size) == 3 and min(size) > 0 and len(mean) == len(std) == size[0] == channels
        fits = fits and 0 < crop_pct <= 1 and interpolation in _INTERPOLATIONS
        fits = fits and limits.usable_input(size, mean, std, crop_pct)
    except (KeyError, TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise InputError(
            f"{path} has an input that can't be used: {limits.shown(stated)}. Expected size (channels, height, width) "
            f"of at most {limits.MOST_SIDE} pixels, also when divided by crop_pct, mean and std for "
            f"{limits.shown(channels)} channels, std from {limits.STD_RANGE[0]}, interpolation, crop_pct from 0 to 1"
        )
    return {"size": size, "mean": mean, "std": std, "interpolation": interpolation, "crop_pct": crop_pct}
