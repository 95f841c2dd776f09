"""Weights files of models that a builder of this package makes on a backbone of timm: detectors and segmenters.

The metadata of all of them holds, each as text: `format`; `task`; `architecture`, the name of the builder;
`model_args`, its arguments (JSON); `classes` (JSON list).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import timm
from torch import nn

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import check_tensors, expected_tensors, json_entry, load_described, read_header
from laplacianformer.weights._file import FORBIDDEN, FORMAT, check_task, task_name, with_defaults_of_file

Model = TypeVar("Model", bound=nn.Module)
Builders = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Built:
    """What the metadata of a file says about its model."""

    build: Callable[..., Any]
    arguments: dict[str, Any]
    classes: tuple[str, ...]


def built_metadata(
    task: str, architecture: str, arguments: Mapping[str, Any], classes: Sequence[str]
) -> dict[str, str]:
    """The metadata that all these files have."""
    given = arguments["backbone_args"] or {}
    lasting = {name: value for name, value in given.items() if name not in FORBIDDEN}
    try:
        stated = json.dumps({**arguments, "backbone_args": lasting})
    except TypeError as error:
        name = task_name(task)
        raise InputError(f"the {name}'s arguments can't be written to a weights file: {error}") from None
    return {
        "format": FORMAT,
        "task": task,
        "architecture": architecture,
        "model_args": stated,
        "classes": json.dumps(list(classes)),
    }


def check_built(
    path: Path, metadata: Mapping[str, str], task: str, builders: Builders, more: Sequence[str] = ()
) -> Built:
    """Builder, arguments and classes of a file, if they are consistent.

    more: keys that the metadata must have, too.
    """
    check_task(path, metadata, task)
    what = task_name(task)
    missing = [key for key in ("task", "architecture", "model_args", "classes", *more) if key not in metadata]
    if missing or metadata["architecture"] not in builders:
        said = f"no {', '.join(missing)} in its metadata" if missing else f"a {limits.shown(metadata['architecture'])}"
        raise InputError(f"{path} is not a {what} of this package ({said}): expected a file of save_{what}")
    arguments, classes = (json_entry(path, metadata, key) for key in ("model_args", "classes"))
    backbone_args = arguments.get("backbone_args", {}) if isinstance(arguments, dict) else None
    if not isinstance(backbone_args, dict) or FORBIDDEN & backbone_args.keys() or "weights" in arguments:
        raise InputError(f"{path} has model_args that are not allowed: {limits.one_line(metadata['model_args'])}")
    limits.check_arguments(arguments, f"model_args in the metadata of {path}")
    backbone = str(arguments.get("backbone"))
    if not timm.is_model(backbone):
        raise InputError(
            f"{path} has a backbone {limits.shown(arguments.get('backbone'))}, which this version doesn't know"
        )
    if backbone.startswith("laplacianformer_"):
        arguments = {**arguments, "backbone_args": with_defaults_of_file(metadata, backbone_args)}
    count = arguments.get("num_classes")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes) or len(classes) != count:
        raise InputError(f"{path} names {limits.shown(classes)} for a {what} of {limits.shown(count)} classes")
    return Built(builders[metadata["architecture"]], arguments, tuple(classes))


def load_built(path: Path, built: Built, architecture: str) -> nn.Module:
    """The model of a file, in float32 and evaluation mode. Nothing is downloaded."""
    return load_made(path, architecture, lambda: built.build(**built.arguments))


def load_made(path: Path, architecture: str, make: Callable[[], Model]) -> Model:
    """The model that `make` builds with the tensors of a file, in evaluation mode."""
    header, _ = read_header(path)
    try:
        check_tensors(path, architecture, expected_tensors(make, f"the {architecture} of {path}"), header)
        model = make()
    except InputError:
        raise
    except Exception as error:  # whatever arguments that nobody expected make the parts of a model raise
        raise InputError(f"{path} asks for a {architecture} that can't be built: {limits.reason(error)}") from None
    load_described(model, path, architecture)
    return model.eval()
