"""The command line: `laplacianformer COMMAND`. No logic here."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from laplacianformer import __version__


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

    parsed = parser.parse_args(arguments)
    parsed.run(parsed)


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


def _pixels(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of pixels, at least 1, got {text!r}")
    return int(text)
