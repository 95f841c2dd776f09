"""A trained segmenter in one safetensors file that describes itself.

The metadata holds, each as text: `format`; `task`, "segmentation"; `architecture`, "semantic_fpn" or "upernet";
`model_args`, the arguments of that builder (JSON); `classes`, their names (JSON list); `labels`, what values in label
maps mean (JSON, as a YAML file of labels); `input`, how images are prepared (JSON); and whatever the writer adds, such
as recipe, metrics and commit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import json_entry, read_header, state_dict, write_tensors
from laplacianformer.segmentation._builders import BUILDERS, Segmenter
from laplacianformer.segmentation._classes import Preparation, preparation_of
from laplacianformer.segmentation._labels import Labels, labels_of
from laplacianformer.weights._built import Built, built_metadata, check_built, load_built


@dataclass(frozen=True)
class SegmenterWeights:
    """A segmenter in evaluation mode and what its file says about it."""

    model: Segmenter
    labels: Labels
    preparation: Preparation
    metadata: dict[str, str]
    path: Path


def save_segmenter(
    path: Path | str,
    model: Segmenter,
    *,
    labels: Labels | Sequence[str],
    preparation: Preparation | None = None,
    metadata: Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a segmenter of this package to one safetensors file, whole or not at all.

    Args:
        labels: of its classes, or their names alone.
        preparation: of images; without it, ImageNet's normalisation and the whole image as it is.
        metadata: what else the file should say.
        dtype: of the parameters in the file, for example torch.float16. Buffers (a few statistics) keep theirs.
    """
    path = Path(path)
    known = labels if isinstance(labels, Labels) else labels_of({"classes": list(labels)}, "labels")
    stated = segmenter_metadata(path, model, known, preparation or Preparation(), metadata or {})
    write_tensors(path, state_dict(model, dtype), stated)


def segmenter_metadata(
    path: Path, model: Any, labels: Labels, preparation: Preparation, metadata: Mapping[str, str]
) -> dict[str, str]:
    """What `save_segmenter` would write, or its error: a file that can't be read back is not written."""
    if not isinstance(model, Segmenter) or model.name not in BUILDERS:
        raise TypeError(f"expected a model of laplacianformer.segmentation, got a {type(model).__name__}")
    stated = {
        **built_metadata("segmentation", model.name, model.arguments, labels.names),
        "labels": json.dumps(labels.tree()),
        "input": preparation.as_json(),
        **metadata,
    }
    _checked(path, stated)
    return stated


def load_segmenter(path: Path | str) -> SegmenterWeights:
    """The segmenter of a file of `save_segmenter`, in float32 and evaluation mode. Nothing is downloaded."""
    path = Path(path)
    _, metadata = read_header(path)
    built, labels, preparation = _checked(path, metadata)
    model = load_built(path, built, metadata["architecture"])
    assert isinstance(model, Segmenter)
    return SegmenterWeights(model, labels, preparation, metadata, path)


def _checked(path: Path, metadata: Mapping[str, str]) -> tuple[Built, Labels, Preparation]:
    """What a file says, if it is consistent."""
    built = check_built(path, metadata, "segmentation", BUILDERS, ("labels", "input"))
    labels = labels_of(json_entry(path, metadata, "labels"), f"labels in the metadata of {path}")
    if labels.names != built.classes:
        raise InputError(
            f"{path} has labels for {limits.shown(labels.names)}, and classes {limits.shown(built.classes)}"
        )
    return built, labels, preparation_of(path, metadata)
