"""Weights that a model on a backbone starts from: those of a classifier for the backbone, or of its own kind for all.

Such a model has `arguments`, those of its builder: the name of the backbone, the number of classes, and others.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import json_entry, load_tensors, read_header
from laplacianformer.training._feature_maps import FeatureMaps
from laplacianformer.training._frozen import flat
from laplacianformer.weights._file import task_name
from laplacianformer.weights._start import start_file


def backbone_start(
    section: str, name: str, weights: str | None, arguments: dict[str, Any]
) -> tuple[str, Path | None, dict[str, Any]]:
    """Backbone, weights file and arguments of the backbone: timm loads weights that it downloads by itself.

    section: of the recipe, for the error.
    """
    path = start_file(weights) if weights is not None else None
    if weights is None or path is not None:
        return name, path, arguments
    if weights.partition(".")[0] != name.partition(".")[0]:
        raise InputError(f"{section}.weights={weights} are those of another model than {section}.backbone={name}")
    return weights, None, {**arguments, "pretrained": True}


def load_start(model: Any, path: Path, task: str, maps: FeatureMaps, per_class: tuple[str, ...]) -> None:
    """Load the tensors of a weights file into a model: all of them, or those of its backbone.

    per_class: how the names of layers with one output per class begin. They keep their random weights if the file has
        other classes.
    """
    header, metadata = read_header(path)
    stated = metadata.get("task")
    if stated == "classification":
        _load_backbone(model, path, maps, header, metadata)
    elif stated == task:
        _load_all(model, path, per_class, metadata)
    else:
        said = limits.one_line(str(stated))
        raise InputError(
            f"{path} holds weights for {said}: expected a classifier or a {task_name(task)} of this package"
        )


def _load_backbone(
    model: Any, path: Path, maps: FeatureMaps, header: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    name = model.arguments["backbone"]
    if metadata.get("architecture") != name:
        said = limits.one_line(str(metadata.get("architecture")))
        raise InputError(f"{path} holds a {said}: expected {name}, the backbone")
    given = {flat(key): key for key in header}
    # Without the last norm and the head, which a model on feature maps does not have.
    names = {key: given[flat(key)] for key in maps.model.state_dict() if flat(key) in given}
    try:
        load_tensors(maps.model, path, name, names)
    except InputError as error:
        if "converted" not in metadata:
            raise
        raise InputError(
            f"{path} holds a converted {name}, with other attention than the backbone: a detector or a segmenter can't "
            f"start from it. Give the softmax weights that it was made from, or a laplacianformer_* backbone ({error})"
        ) from None


def _load_all(model: Any, path: Path, per_class: tuple[str, ...], metadata: Mapping[str, str]) -> None:
    stated = json_entry(path, metadata, "model_args") if "model_args" in metadata else None
    others = isinstance(stated, dict) and stated.get("num_classes") != model.arguments["num_classes"]
    kept = [key for key in model.state_dict() if others and key.startswith(per_class)]
    architecture = limits.one_line(str(metadata.get("architecture")))
    load_tensors(model, path, f"{architecture} on {model.arguments['backbone']}", kept=kept)
