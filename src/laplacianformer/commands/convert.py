"""`laplacianformer convert`: from a trained softmax model to one with Laplacian attention."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from laplacianformer._util.errors import InputError
from laplacianformer.commands import options
from laplacianformer.commands.train import check_pipes, data_overrides, text_override

SUMMARY = "put Laplacian attention into a trained vision transformer"
DESCRIPTION = (
    "Takes the weights of a trained softmax model over, trains each new attention layer to match the one that it "
    "replaces, then distils the whole model from the teacher. Images need no labels. The result is one weights file, "
    "for predict, eval and export. An interrupted conversion continues with --resume."
)
EPILOG = """examples:
  laplacianformer convert vit_small_patch16_224 --data DIR --output vit.safetensors
  laplacianformer convert vit_tiny_patch16_224 --weights mine.safetensors --data DIR --output vit.safetensors
  laplacianformer convert softmax.safetensors --data DIR --output converted.safetensors --layers 0-5,8
  laplacianformer convert pvt_v2_b0 --data DIR --output pvt.safetensors distil.epochs=3 --resume"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL|FILE", help="a name of timm (vit_*, deit*, pvt_v2_*), or a weights file of this package"
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="tensors of MODEL: .safetensors, or a state dict of torch (default: those of timm's hub)",
    )
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="JSON with the names of the outputs: a list, or {name: output} (default: the folders of --data, sorted)",
    )
    parser.add_argument(
        "--data", required=True, metavar="[READER:]DIR", help="images, as for train; their labels are only counted"
    )
    options.add_allow_pipes(parser)
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the weights file to write (.safetensors); the folder of that name without the ending holds the run",
    )
    parser.add_argument(
        "--layers",
        type=layer_numbers,
        metavar="0-5,8",
        help="attention layers to convert, counted from 0 (default: all)",
    )
    parser.add_argument(
        "--recipe",
        metavar="NAME|FILE",
        help="a recipe of the package, or a .yaml file (default: convert-vit or convert-pvt, whichever fits MODEL)",
    )
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoints of the run, if any")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],  # or argparse says that they are required where MODEL is missing
        metavar="section.key=value",
        help="changes to the recipe, for example distil.epochs=3",
    )
    options.collect_rest(parser, "overrides")


def layer_numbers(text: str) -> tuple[int, ...]:
    """0-5,8 as numbers."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or len(text) > 1000:
            raise argparse.ArgumentTypeError(f"expected numbers and ranges such as 0-5,8, got {text!r}")
        found += range(int(first), min(int(last or first), 10_000) + 1)
    return tuple(found)


def run(arguments: argparse.Namespace) -> None:
    from laplacianformer._util import files

    output: Path = arguments.output
    if output.suffix != ".safetensors":
        raise InputError(f"expected a file name that ends with .safetensors, got {output}")
    files.check_file(output)
    if arguments.allow_pipes:
        check_pipes(arguments.data)
    try:
        from laplacianformer.commands.progress import ProgressReport
        from laplacianformer.convert import load_recipe, train
        from laplacianformer.convert._teacher import family_recipe
    except ImportError as error:
        raise InputError(f"converting needs {error.name}: pip install 'laplacianformer[train]'") from None
    recipe = load_recipe(arguments.recipe or family_recipe(arguments.model), _overrides(arguments))
    _check_output(output, recipe.teacher.name, recipe.teacher.weights)
    train(
        recipe,
        output.with_suffix(""),
        resume=arguments.resume,
        report=ProgressReport(),
        allow_pipes=arguments.allow_pipes,
        weights=output,
    )


def _check_output(output: Path, *teacher: str | None) -> None:
    """teacher: what may be its files, wherever they were named: in the command, an override or the recipe."""
    for name in teacher:
        if name is not None and output.is_file() and os.path.isfile(name) and output.samefile(name):
            raise InputError(f"{output} would overwrite the model that is converted: give --output another name")


def _overrides(arguments: argparse.Namespace) -> list[str]:
    """What the command says, before the overrides of the user: the teacher, its input, the data and the layers."""
    from laplacianformer.convert._teacher import stated_input

    said = [text_override("teacher.name", arguments.model)]
    said += [
        text_override(f"teacher.{key}", str(getattr(arguments, key)))
        for key in ("weights", "classes")
        if getattr(arguments, key) is not None
    ]
    stated: dict[str, Any] = stated_input(arguments.model)
    said += [f"data.{key}={json.dumps(value)}" for key, value in stated.items()]
    if arguments.layers is not None:
        said.append(f"convert.layers={json.dumps(arguments.layers)}")
    return [*said, *data_overrides(arguments.data), *arguments.overrides]
