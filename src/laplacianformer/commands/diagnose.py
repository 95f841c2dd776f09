"""`laplacianformer diagnose`: what each attention layer of a model does, and how well a converted one matches."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laplacianformer._util.errors import InputError
from laplacianformer.commands import options, terminal

if TYPE_CHECKING:
    from torch import Tensor

    from laplacianformer.convert._teacher import TeacherModel
    from laplacianformer.inspect import Matching
    from laplacianformer.weights import Weights

SUMMARY = "what each attention layer does, and how well a converted one matches its teacher"
DESCRIPTION = (
    "Runs some images through a classifier and prints one row per Laplacian attention layer: how much of it depends on "
    "the query, its part of the residual stream, mean and spread of the kernel, and the accuracy of the solve. With "
    "--teacher also, for each layer of a converted model, the relative squared error of its output and the cosine "
    "between rows of the two attention matrices: layers that resist can stay softmax (convert --layers)."
)
EPILOG = """examples:
  laplacianformer diagnose photo.png
  laplacianformer diagnose --weights runs/mine/model.safetensors images/ --most 64 --json
  laplacianformer diagnose --weights vit.safetensors images/ --teacher vit_tiny_patch16_224
  laplacianformer diagnose --weights vit.safetensors images/ --teacher vit_tiny_patch16_224 --teacher-weights mine.pth
  laplacianformer diagnose --weights converted.safetensors images/ --teacher softmax.safetensors

exit code: 0; 1 if some images could not be read (each is named, the others are
used); 2 if none could, or if something else in the input can't be used"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_images(parser)
    options.add_weights(parser)
    parser.add_argument(
        "--most",
        type=options.positive,
        default=16,
        metavar="N",
        help="images to take at most, evenly from all that are found (default: %(default)s)",
    )
    parser.add_argument(
        "--teacher",
        metavar="MODEL|FILE",
        help="what the weights were converted from: a name of timm, or a weights file of this package",
    )
    parser.add_argument(
        "--teacher-weights",
        type=Path,
        metavar="FILE",
        help="tensors of that MODEL: .safetensors, or a state dict of torch (default: those of timm's hub)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON to stdout, and nothing else")
    options.add_device(parser)


def run(arguments: argparse.Namespace) -> int:
    """The exit code is 0, or 1 if some images could not be read."""
    from laplacianformer._util.devices import chosen_device
    from laplacianformer.inspect import Diagnosis, diagnose
    from laplacianformer.inspect._finite import check_outputs

    if arguments.teacher_weights is not None and arguments.teacher is None:
        raise InputError("--teacher-weights are tensors of a model: name it with --teacher")
    loaded, device = options.load_classifier(arguments.weights), chosen_device(arguments.device)
    teacher = None if arguments.teacher is None else _teacher(loaded, arguments.teacher, arguments.teacher_weights)
    inputs, failures = _inputs(loaded, arguments.images, arguments.most)
    for failure in failures:
        terminal.warn(failure)
    if inputs is None:
        raise InputError("no image could be read")
    inputs, model = inputs.to(device), loaded.model.to(device)
    check_outputs(loaded.path, model(inputs), model, inputs)
    matching = None if teacher is None else _matching(loaded, teacher, inputs)
    try:
        diagnosis = diagnose(model, inputs)
    except ValueError as error:
        if matching is None:
            raise InputError(f"{loaded.path}: {error}") from None
        diagnosis = Diagnosis()  # converted to another mixer, which has a teacher all the same
    if arguments.json:
        layers = {"layers": [asdict(row) for row in diagnosis]}
        if matching is not None:
            layers["matching"] = [asdict(row) for row in matching]
        terminal.show_json({"weights": str(loaded.path), "images": len(inputs), **layers})
    else:
        for found in (diagnosis, matching):
            if found:
                terminal.show_wide(found.table())
    return 1 if failures else 0


def _inputs(loaded: "Weights", names: Sequence[str], most: int) -> tuple["Tensor | None", list[str]]:
    """The images as the model takes them, if there are any, and why others can't be read."""
    import torch

    from laplacianformer.classification._inference import model_input
    from laplacianformer.data import _images as images

    found, transform = list(images.find(names)), images.to_input(loaded.input)
    chosen = found[:: -(-len(found) // most)] if found else []
    read = [(path, failure or model_input(path, transform)) for path, failure in chosen]
    failures = [f"{path}: {entry}" for path, entry in read if isinstance(entry, str)]
    inputs = [entry for _, entry in read if not isinstance(entry, str)]
    return torch.stack(inputs) if inputs else None, failures


def _teacher(loaded: "Weights", name: str, weights: Path | None) -> "TeacherModel":
    """The model that the weights were converted from; by name, it is built with the arguments that they state."""
    if "converted" not in loaded.metadata:
        raise InputError(f"{loaded.path} is not converted, so it has no --teacher: leave it out")
    try:
        from laplacianformer.convert import Teacher
        from laplacianformer.convert._teacher import is_file, load_teacher
    except ImportError as error:
        raise InputError(f"--teacher needs {error.name}: pip install 'laplacianformer[train]'") from None
    stated: dict[str, Any] = {} if is_file(name) else json.loads(loaded.metadata["model_args"])
    stated.pop("num_classes", None)
    make: Any = Teacher  # of pydantic, which mypy does not see through
    return load_teacher(make(name=name, weights=None if weights is None else str(weights), args=stated))


def _matching(loaded: "Weights", teacher: "TeacherModel", inputs: "Tensor") -> "Matching":
    from laplacianformer._util.limits import parse_json
    from laplacianformer.convert._teacher import check_images
    from laplacianformer.inspect import compare_attention

    said = parse_json(loaded.metadata.get("converted_from", "{}"), f"converted_from in the metadata of {loaded.path}")
    if isinstance(said, dict) and said.get("sha256", "") not in ("", teacher.origin()["sha256"]):
        terminal.warn(f"{loaded.path} was converted from other weights than those of the teacher")
    teacher.model.to(inputs.device)
    found = compare_attention(loaded.model, teacher.model, inputs)
    check_images(teacher, inputs)
    return found
