"""A converted vision transformer against its teacher with softmax attention (torch's SDPA): time and peak memory.

    python benchmarks/conversion.py                       writes results/benchmarks/conversion/cost.csv
    python benchmarks/conversion.py --threads 2 --seconds 20 --grids 7 10

One image in evaluation mode, at several sizes, all in one interleaved run per size. Weights are random: they change no
time. `exponent_of_time` and `exponent_of_memory` are those in the number of tokens, from the size before.
"""

import argparse
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import timm
import torch
from comparing import RESULTS, Builders, Comparison, add_measuring, compare_all, inference_or_training, parser_of

from laplacianformer._util.measuring import Call
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.model._conversion import Conversion, exchange, softmax_layers

MODEL = "vit_tiny_patch16_224"
PATCH = 16
SIZES = (224, 448, 896, 1344)


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "conversion")
    add_measuring(parser, seconds=10.0)
    parser.add_argument("--model", default=MODEL, help="a name of timm (default: %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="sides in pixels (default: %(default)s)")
    parser.add_argument("--grids", type=int, nargs="+", default=(7, 10), help="of landmarks (default: %(default)s)")
    arguments = parser.parse_args()
    file = arguments.output / "cost.csv"
    rows = compare_all(comparisons(arguments), file, arguments)
    write_rows(file, with_exponents(rows))


def comparisons(arguments: argparse.Namespace) -> Iterator[Comparison]:
    for size in arguments.sizes:
        builders: Builders = {"softmax": partial(build, arguments.model, size, None)}
        for grid in arguments.grids:
            builders[f"laplacian, grid {grid}"] = partial(build, arguments.model, size, grid)
        labels = {"model": arguments.model, "size": size, "tokens": (size // PATCH) ** 2, "batch": 1}
        yield labels, builders, "softmax"


def build(name: str, size: int, grid: int | None) -> Call:
    torch.manual_seed(0)
    model: Any = timm.create_model(name, img_size=size).eval()
    if grid is not None:
        exchange(model, Conversion("laplacian", {"grid": grid, "gain": "learned"}, tuple(softmax_layers(model))))
    images = torch.randn(1, 3, size, size)
    return inference_or_training(partial(model, images), training=False)


def with_exponents(rows: list[Row]) -> list[Row]:
    """Each row with the exponents from the row of the same name before it; none for the first."""
    before: dict[str, Row] = {}
    found = []
    for row in rows:
        last = before.get(row["name"])
        exponents = {
            f"exponent_of_{what}": "" if last is None else round(_exponent(last, row, column), 2)
            for what, column in (("time", "milliseconds"), ("memory", "peak_megabytes"))
        }
        before[row["name"]] = row
        found.append({**row, **exponents})
    return found


def _exponent(first: Row, second: Row, column: str) -> float:
    return math.log(second[column] / first[column]) / math.log(second["tokens"] / first["tokens"])


if __name__ == "__main__":
    main()
