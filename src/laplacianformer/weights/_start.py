"""Weights that a training may start from: a file, or the name of a model of timm, whose weights are downloaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from timm.data import resolve_data_config
from timm.models import get_pretrained_cfg, is_model_pretrained

from laplacianformer import assets as shipped
from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer.weights._file import read_description

_SHIPPED = "laplacianformer_nano"  # the model whose weights are inside the package


@dataclass(frozen=True)
class Start:
    """What weights say of the model that they are for."""

    architecture: str
    model_args: dict[str, Any]  # of timm.create_model, without num_classes
    input: dict[str, Any]  # size (channels, height, width), mean, std, interpolation, crop_pct


def start_file(weights: str) -> Path | None:
    """The file that is meant, or None for a name of timm."""
    path = Path(weights)
    if weights == _SHIPPED and not path.exists() and shipped.PATH.is_file():
        return shipped.PATH
    if path.suffix == ".safetensors" or path.exists():
        return path
    if not timm.is_model(weights):
        raise InputError(
            f"there is no file {limits.one_line(weights)}, and timm has no model of this name: expected a weights file "
            "(.safetensors), or a name of timm"
        )
    if not is_model_pretrained(weights):
        raise InputError(
            f"there is no file {limits.one_line(weights)}, and timm has no weights for a model of this name"
        )
    return None


def read_start(weights: str) -> Start:
    """What a file, or timm for one of its names, says; nothing is downloaded."""
    path = start_file(weights)
    if path is not None:
        architecture, arguments, taken = read_description(path)
        return Start(architecture, {key: value for key, value in arguments.items() if key != "num_classes"}, taken)
    config = resolve_data_config(pretrained_cfg=get_pretrained_cfg(weights).to_dict())
    taken = {key: config[key] for key in ("mean", "std", "interpolation", "crop_pct")}
    return Start(weights.partition(".")[0], {}, {"size": config["input_size"], **taken})
