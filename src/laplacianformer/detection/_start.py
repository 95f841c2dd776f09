"""Weights that training starts from: those of a classifier for the backbone, or of a detector for everything."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import check_tensors, json_entry, read_tensors
from laplacianformer.training._frozen import flat

# Layers with one output per class: they keep their random weights if the file has other classes.
_PER_CLASS = (
    "roi_heads.box_predictor.",
    "roi_heads.mask_predictor.mask_fcn_logits.",
    "head.classification_head.cls_log",
)


def load_start(model: Any, path: Path) -> None:
    """Load the tensors of a weights file into a detector: all of them, or those of the backbone."""
    tensors, metadata = read_tensors(path)
    task = metadata.get("task")
    if task == "classification":
        _load_backbone(model, path, tensors, metadata)
    elif task == "detection":
        _load_all(model, path, tensors, metadata)
    else:
        raise InputError(f"{path} holds weights for {task}: expected a classifier or a detector of this package")


def _load_backbone(model: Any, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    name, backbone = model.arguments["backbone"], model.backbone.maps.model
    if metadata.get("architecture") != name:
        raise InputError(f"{path} holds a {metadata.get('architecture')}: expected {name}, the backbone")
    given = {flat(key): tensor for key, tensor in tensors.items()}
    expected = backbone.state_dict()
    # Without the last norm and the head, which a detector does not have.
    chosen = {key: given[flat(key)] for key in expected if flat(key) in given}
    check_tensors(path, name, expected, chosen)
    backbone.load_state_dict(chosen)


def _load_all(model: Any, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    expected, chosen = model.state_dict(), dict(tensors)
    stated = json_entry(path, metadata, "model_args")
    if isinstance(stated, dict) and stated.get("num_classes") != model.arguments["num_classes"]:
        for key in expected:
            if key.startswith(_PER_CLASS):
                chosen[key] = expected[key]
    check_tensors(path, f"{model.detector} on {model.arguments['backbone']}", expected, chosen)
    model.load_state_dict(chosen)
