"""Weights that training starts from: those of a classifier for the backbone, or of a detector for everything."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import json_entry, load_tensors, read_header
from laplacianformer.training._frozen import flat

# Layers with one output per class: they keep their random weights if the file has other classes.
_PER_CLASS = (
    "roi_heads.box_predictor.",
    "roi_heads.mask_predictor.mask_fcn_logits.",
    "head.classification_head.cls_log",
)


def load_start(model: Any, path: Path) -> None:
    """Load the tensors of a weights file into a detector: all of them, or those of the backbone."""
    header, metadata = read_header(path)
    task = metadata.get("task")
    if task == "classification":
        _load_backbone(model, path, header, metadata)
    elif task == "detection":
        _load_all(model, path, metadata)
    else:
        said = limits.one_line(str(task))
        raise InputError(f"{path} holds weights for {said}: expected a classifier or a detector of this package")


def _load_backbone(model: Any, path: Path, header: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    name, backbone = model.arguments["backbone"], model.backbone.maps.model
    if metadata.get("architecture") != name:
        said = limits.one_line(str(metadata.get("architecture")))
        raise InputError(f"{path} holds a {said}: expected {name}, the backbone")
    given = {flat(key): key for key in header}
    # Without the last norm and the head, which a detector does not have.
    names = {key: given[flat(key)] for key in backbone.state_dict() if flat(key) in given}
    load_tensors(backbone, path, name, names)


def _load_all(model: Any, path: Path, metadata: Mapping[str, str]) -> None:
    stated = json_entry(path, metadata, "model_args") if "model_args" in metadata else None
    others = isinstance(stated, dict) and stated.get("num_classes") != model.arguments["num_classes"]
    kept = [key for key in model.state_dict() if others and key.startswith(_PER_CLASS)]
    load_tensors(model, path, f"{model.detector} on {model.arguments['backbone']}", kept=kept)
