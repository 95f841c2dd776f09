"""A trained detector in one safetensors file that describes itself.

The metadata holds, each as text: `format`; `task`, "detection"; `architecture`, "mask_rcnn" or "retinanet";
`model_args`, the arguments of that builder (JSON); `classes`, names of the labels from 1 on (JSON list);
`category_ids`, their ids in the data (JSON list); and whatever the writer adds, such as recipe, metrics and commit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import (
    check_tensors,
    json_entry,
    read_header,
    read_tensors,
    state_dict,
    write_tensors,
)
from laplacianformer.detection._builders import BUILDERS
from laplacianformer.weights._file import FORBIDDEN, FORMAT, check_task, with_defaults_of_file

_KEYS = ("task", "architecture", "model_args", "classes", "category_ids")


@dataclass(frozen=True)
class DetectorWeights:
    """A detector in evaluation mode and what its file says about it."""

    model: nn.Module
    classes: tuple[str, ...]  # of the labels 1, 2, ...
    category_ids: tuple[int, ...]
    metadata: dict[str, str]
    path: Path

    @property
    def has_masks(self) -> bool:
        return self.metadata["architecture"] == "mask_rcnn"


def save_detector(
    path: Path | str,
    model: Any,
    *,
    classes: Sequence[str],
    category_ids: Sequence[int] | None = None,
    metadata: Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a detector of this package to one safetensors file, whole or not at all.

    Args:
        classes: names of the labels, from label 1 on.
        category_ids: their ids in COCO files; without them 1, 2, ...
        metadata: what else the file should say.
        dtype: of the parameters in the file, for example torch.float16. Buffers (a few statistics) keep theirs.
    """
    path = Path(path)
    stated = detector_metadata(path, model, classes, category_ids or range(1, len(classes) + 1), metadata or {})
    write_tensors(path, state_dict(model, dtype), stated)


def detector_metadata(
    path: Path, model: Any, classes: Sequence[str], category_ids: Sequence[int], metadata: Mapping[str, str]
) -> dict[str, str]:
    """What `save_detector` would write, or its error: a file that can't be read back is not written."""
    if getattr(model, "detector", None) not in BUILDERS:
        raise TypeError(f"expected a model of laplacianformer.detection, got a {type(model).__name__}")
    lasting = {name: value for name, value in (model.arguments["backbone_args"] or {}).items() if name not in FORBIDDEN}
    try:
        arguments = json.dumps({**model.arguments, "backbone_args": lasting})
    except TypeError as error:
        raise InputError(f"the detector's arguments can't be written to a weights file: {error}") from None
    stated = {
        "format": FORMAT,
        "task": "detection",
        "architecture": model.detector,
        "model_args": arguments,
        "classes": json.dumps(list(classes)),
        "category_ids": json.dumps(list(category_ids)),
        **metadata,
    }
    _checked(path, stated)
    return stated


def load_detector(path: Path | str) -> DetectorWeights:
    """The detector of a file that `save_detector` wrote, in float32 and evaluation mode. Nothing is downloaded."""
    path = Path(path)
    header, metadata = read_header(path)
    build, arguments, classes, category_ids = _checked(path, metadata)
    try:
        with torch.device("meta"):  # before there is memory for what the file may only claim
            expected = build(**arguments).state_dict()
        check_tensors(path, metadata["architecture"], expected, header)
        model = build(**arguments)
    except InputError:
        raise
    except Exception as error:  # whatever arguments that nobody expected make the parts of a detector raise
        raise InputError(
            f"{path} asks for a {metadata['architecture']} that can't be built: {limits.reason(error)}"
        ) from None
    tensors, _ = read_tensors(path)
    check_tensors(path, metadata["architecture"], model.state_dict(), tensors)  # the settings in them, too
    model.load_state_dict(tensors)
    return DetectorWeights(model.eval(), classes, category_ids, metadata, path)


def _checked(path: Path, metadata: Mapping[str, str]) -> tuple[Any, dict[str, Any], tuple[str, ...], tuple[int, ...]]:
    """Builder, arguments, classes and category ids of a file, if they are consistent."""
    check_task(path, metadata, "detection")
    missing = [key for key in _KEYS if key not in metadata]
    if missing or metadata["architecture"] not in BUILDERS:
        what = f"no {', '.join(missing)} in its metadata" if missing else f"a {limits.shown(metadata['architecture'])}"
        raise InputError(f"{path} is not a detector of this package ({what}): expected a file of save_detector")
    arguments, classes, ids = (json_entry(path, metadata, key) for key in ("model_args", "classes", "category_ids"))
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
        raise InputError(f"{path} names {limits.shown(classes)} for a detector of {limits.shown(count)} classes")
    if not isinstance(ids, list) or not all(isinstance(number, int) for number in ids) or len(set(ids)) != count:
        raise InputError(f"{path} has category ids {limits.shown(ids)} for a detector of {count} classes")
    return BUILDERS[metadata["architecture"]], arguments, tuple(classes), tuple(ids)
