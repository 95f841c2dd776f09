"""A folder in the layout of the Hugging Face hub: config.json, model.safetensors and a model card.

timm loads it by name: timm.create_model("local-dir:FOLDER", pretrained=True), or "hf-hub:..." once it is uploaded.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from timm.models import save_for_hf
from timm.models._hub import generate_readme

from laplacianformer._util import files
from laplacianformer._util.errors import InputError
from laplacianformer.export._check import check_finite
from laplacianformer.weights import Weights
from laplacianformer.weights._description import metrics, percent

CITATION = """@inproceedings{laplacianformer2026,
  title     = {LaplacianFormer: Rethinking Linear Attention with Laplacian Kernel},
  author    = {Feng, Zhe and Lian, Sen and Wang, Changwei and Zhang, Muyang and Tan, Tianlong and Xu, Rongtao
               and Meng, Weiliang and Zhang, Xiaopeng},
  booktitle = {International Conference on Learning Representations},
  year      = {2026}
}"""
LIMITS = (
    "It knows only these classes: an image of anything else is assigned to one of them.",
    "Its metrics were measured on the held-out part of its own data, at this image size; other sizes work, unmeasured.",
    "It is not meant for uses where a wrong answer does harm.",
    "Probabilities are not calibrated.",
)


def write_folder(loaded: Weights, folder: Path) -> None:
    """Write the folder, whole or not at all. It must not exist yet, or be empty."""
    if "converted" in loaded.metadata:
        raise InputError(
            f"{loaded.path} holds a converted model, which timm can't build from a folder: share the file itself, "
            "which laplacianformer.load_weights reads, or export it to ONNX"
        )
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"{folder} exists already: expected the name of a new folder")
    files.check_folder(folder.parent)
    check_finite(loaded.path, loaded.model, *loaded.input["size"])
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    with files.writing(folder):
        try:
            save_for_hf(
                loaded.model,
                partial,
                model_config={"label_names": list(loaded.classes), "pretrained_cfg": _pretrained_cfg(loaded)},
                model_args=json.loads(loaded.metadata["model_args"]),
                safe_serialization=True,
            )
            (partial / "README.md").write_text(
                card(loaded, Path(os.path.realpath(folder)).name), encoding="utf-8", errors="backslashreplace"
            )
            os.replace(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def card(loaded: Weights, name: str) -> str:
    """The text of the model card: what the model is, its data, metrics and limits, and how to use it."""
    metadata, measured = loaded.metadata, metrics(loaded)
    millions = sum(parameter.numel() for parameter in loaded.model.parameters()) / 1e6
    _, height, width = loaded.input["size"]
    stated = {
        "Description": metadata.get("description"),
        "Recipe": metadata.get("recipe"),
        "Date": metadata.get("date"),
    }
    details: dict[str, Any] = {
        "Architecture": metadata["architecture"],
        "Parameters (M)": f"{millions:.2f}",
        "Image size": f"{height} x {width}; others work too",
        "Classes": ", ".join(loaded.classes),
        "Trained on": metadata.get("data", "not stated"),
        "Metrics": {key: percent(key, value) for key, value in measured.items()} or "not stated",
        "Limits": LIMITS,
        "Commit": metadata.get("commit", "unknown"),
        **{key: _block(value) for key, value in stated.items() if value},
    }
    card = {
        "tags": ["image-classification", "timm", "laplacianformer"],
        "description": "An image classifier with Laplacian attention, which is linear in the number of pixels.",
        "details": details,
        "usage": _usage(name),
        "citation": CITATION,
    }
    return generate_readme(card, name)


def _block(text: str) -> str:
    """Text of several lines as an indented block, so that it does not end the list."""
    return text if "\n" not in text.strip() else "\n\n" + "".join(f"      {line}\n" for line in text.splitlines())


def _usage(name: str) -> str:
    return (
        "```python\n"
        "import timm, laplacianformer  # pip install laplacianformer\n\n"
        f'model = timm.create_model("local-dir:{name}", pretrained=True).eval()\n'
        "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))\n"
        "probabilities = model(transform(image)[None]).softmax(1)  # a Pillow image in RGB\n"
        'model.pretrained_cfg["label_names"][probabilities.argmax()]\n'
        "```\n"
    )


def _pretrained_cfg(loaded: Weights) -> dict[str, Any]:
    """What timm builds transforms and heads from: the model's own, with the input that the weights were trained on."""
    kept = ("pool_size", "fixed_input_size", "first_conv", "classifier", "license")
    config: dict[str, Any] = loaded.model.pretrained_cfg  # type: ignore[assignment]  # timm's own attribute
    taken = dict(loaded.input)
    return {**{key: config[key] for key in kept if key in config}, "input_size": taken.pop("size"), **taken}
