"""The weights inside the package: laplacianformer_nano, trained on CIFAR-10. A source tree may be without them."""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open

__all__ = ["PATH", "as_pretrained", "model_arguments"]

PATH = Path(__file__).parent / "cifar10_nano.safetensors"
_SOURCES = frozenset({"file", "url", "hf_hub_id", "state_dict"})  # where timm may be told to take weights from


def as_pretrained(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of timm.create_model with which `pretrained=True` loads these weights.

    Unchanged where other weights are named, or where the package has none: timm then says so.
    """
    overlay = arguments.get("pretrained_cfg_overlay") or {}
    if arguments.get("pretrained_cfg") or _SOURCES & overlay.keys() or not PATH.is_file():
        return arguments
    model_args, taken = model_arguments(), json.loads(_metadata()["input"])
    config = {key: taken[key] for key in ("mean", "std", "interpolation", "crop_pct")}
    config |= {"file": str(PATH), "num_classes": model_args.pop("num_classes")}
    return {**model_args, **arguments, "pretrained_cfg_overlay": {**config, **overlay}}


def model_arguments() -> dict[str, Any]:
    """The arguments of timm.create_model with which the model of these weights was built."""
    arguments: dict[str, Any] = json.loads(_metadata()["model_args"])
    return arguments


def _metadata() -> dict[str, str]:
    with safe_open(PATH, framework="pt") as file:
        metadata: dict[str, str] = file.metadata()
    return metadata
