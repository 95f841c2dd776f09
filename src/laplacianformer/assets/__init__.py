"""The weights inside the package: laplacianformer_nano, trained on CIFAR-10. A source tree may be without them."""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open

__all__ = ["PATH", "as_pretrained"]

PATH = Path(__file__).parent / "cifar10_nano.safetensors"
_SOURCES = frozenset({"file", "url", "hf_hub_id", "state_dict"})  # where timm may be told to take weights from


def as_pretrained(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of timm.create_model with which `pretrained=True` loads these weights.

    Unchanged where other weights are named, or where the package has none: timm then says so.
    """
    overlay = arguments.get("pretrained_cfg_overlay") or {}
    if arguments.get("pretrained_cfg") or _SOURCES & overlay.keys() or not PATH.is_file():
        return arguments
    with safe_open(PATH, framework="pt") as file:
        metadata = file.metadata()
    model_args, taken = json.loads(metadata["model_args"]), json.loads(metadata["input"])
    config = {key: taken[key] for key in ("mean", "std", "interpolation", "crop_pct")}
    config |= {"file": str(PATH), "num_classes": model_args.pop("num_classes")}
    return {**model_args, **arguments, "pretrained_cfg_overlay": {**config, **overlay}}
