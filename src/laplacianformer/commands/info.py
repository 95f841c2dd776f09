"""`laplacianformer info`: parameters and cost of every model size, beside the paper's numbers."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from laplacianformer.commands import options, terminal

if TYPE_CHECKING:
    from laplacianformer.inspect._cost import Cost

SUMMARY = "parameters and cost of every size, beside the paper's"
DESCRIPTION = (
    "Prints the parameters of each size and, for one image, its multiply-adds, operations of the L1 distances, "
    "multiply-adds of the solver and activations. They are counted from shapes: nothing is computed."
)
EPILOG = """examples:
  laplacianformer info
  laplacianformer info --size 512 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size",
        type=options.side,
        default=224,
        metavar="PIXELS",
        help="side of the square image (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> None:
    from laplacianformer.inspect._cost import costs

    rows = costs(arguments.size)
    if arguments.json:
        terminal.show_json([asdict(row) for row in rows])
    else:
        terminal.show(_table(rows))


def _table(rows: Sequence["Cost"]) -> Table:
    from laplacianformer.inspect._cost import REPORTED

    table = Table(title=f"laplacianformer_*: one image of {rows[0].image_size} x {rows[0].image_size} pixels")
    table.add_column("model", no_wrap=True)
    for title in ("params M", "paper", "GMACs", "paper", "L1 Gops", "solver GMACs", "acts M"):
        table.add_column(title, justify="right")
    for row in rows:
        size = row.name.removeprefix("laplacianformer_")
        parameters, macs = REPORTED.get(size, (None, None))
        table.add_row(
            size,
            f"{row.parameters / 1e6:.2f}",
            f"{parameters}" if parameters else "-",
            f"{row.macs / 1e9:.2f}",
            f"{macs}" if macs and row.image_size == 224 else "-",
            f"{row.l1_operations / 1e9:.3f}",
            f"{row.solver_macs / 1e9:.3f}",
            f"{row.activations / 1e6:.1f}",
        )
    return table
