"""The command line: `laplacianformer COMMAND`. No logic here."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from laplacianformer import __version__
from laplacianformer.errors import InputError


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="laplacianformer", description="Vision backbones with Laplacian attention.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True)

    info = commands.add_parser("info", help="parameters and cost of every size, beside the paper's")
    info.add_argument("--size", type=_pixels, default=224, metavar="PIXELS", help="image side (default: %(default)s)")
    info.add_argument("--json", action="store_true", help="print JSON instead of a table")
    info.set_defaults(run=_info)

    demo = commands.add_parser("demo", help="draw the attention of one layer on a generated image")
    demo.add_argument(
        "--output",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="folder of the picture (default: %(default)s)",
    )
    demo.set_defaults(run=_demo)

    _add_train(commands)

    parsed = parser.parse_args(arguments)
    try:
        parsed.run(parsed)
    except InputError as error:
        print(f"laplacianformer {parsed.command}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    train = commands.add_parser("train", help="train a classifier from a recipe")
    train.add_argument("--recipe", required=True, metavar="NAME|FILE", help="a recipe of the package, or a .yaml file")
    train.add_argument(
        "--data", metavar="[READER:]DIR", help="where the images are, as DIR, idx:DIR or torch/cifar10:DIR"
    )
    train.add_argument("--output", type=Path, metavar="DIR", help="folder of the run (default: runs/NAME)")
    train.add_argument("--resume", action="store_true", help="go on from the checkpoint in --output, if there is one")
    train.add_argument("overrides", nargs="*", metavar="section.key=value", help="as optimise.epochs=10")
    train.set_defaults(run=_train)


def _info(arguments: argparse.Namespace) -> None:
    from laplacianformer import info

    rows = info.costs(arguments.size)
    if arguments.json:
        print(json.dumps(info.as_json(rows), indent=2))
    else:
        Console().print(info.as_table(rows))


def _demo(arguments: argparse.Namespace) -> None:
    from laplacianformer import demo

    demo.run(arguments.output)


def _train(arguments: argparse.Namespace) -> None:
    from laplacianformer.tasks import start

    start.train(arguments.recipe, arguments.data, arguments.output, arguments.overrides, resume=arguments.resume)


def _pixels(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of pixels, at least 1, got {text!r}")
    return int(text)
