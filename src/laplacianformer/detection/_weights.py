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

import torch
from torch import nn

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import json_entry, read_header, state_dict, write_tensors
from laplacianformer.detection._builders import BUILDERS
from laplacianformer.weights._built import Built, built_metadata, check_built, load_built


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
    stated = {
        **built_metadata("detection", model.detector, model.arguments, classes),
        "category_ids": json.dumps(list(category_ids)),
        **metadata,
    }
    _checked(path, stated)
    return stated


def load_detector(path: Path | str) -> DetectorWeights:
    """The detector of a file that `save_detector` wrote, in float32 and evaluation mode. Nothing is downloaded."""
    path = Path(path)
    _, metadata = read_header(path)
    built, category_ids = _checked(path, metadata)
    model = load_built(path, built, metadata["architecture"])
    return DetectorWeights(model, built.classes, category_ids, metadata, path)


def _checked(path: Path, metadata: Mapping[str, str]) -> tuple[Built, tuple[int, ...]]:
    """What a file says about its model, and its category ids, if they are consistent."""
    built = check_built(path, metadata, "detection", BUILDERS, ("category_ids",))
    ids, count = json_entry(path, metadata, "category_ids"), len(built.classes)
    if not isinstance(ids, list) or not all(isinstance(number, int) for number in ids) or len(set(ids)) != count:
        raise InputError(f"{path} has category ids {limits.shown(ids)} for a detector of {count} classes")
    return built, tuple(ids)
