"""The attention layer on sequences, images and volumes: how its cost grows, and what masks and leading tokens cost.

    python benchmarks/grids.py scaling    time and peak memory from 2^14 to 2^20 tokens, and their exponents
    python benchmarks/grids.py options    a step with a mask or leading tokens over one without, and over plain PyTorch

One layer with 2 heads of 32 channels. Each part writes a CSV to results/benchmarks/grids/. An exponent is the slope of
the logarithm of time (or memory) over that of the tokens, from the first row of its kind to each: 1 is linear.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from comparing import RESULTS, Comparison, add_measuring, compare_all, inference_or_training, parser_of
from torch import Tensor

from laplacianformer import LaplacianAttention, ops
from laplacianformer._util.measuring import Call
from laplacianformer.experiments.rows import Row, write_rows

# From 2^14 to 2^20 tokens.
SIZES: dict[str, list[tuple[int, ...]]] = {
    "sequence": [(2**14,), (2**16,), (2**18,), (2**20,)],
    "image": [(128, 128), (256, 256), (512, 512), (1024, 1024)],
    "volume": [(16, 32, 32), (32, 32, 64), (64, 64, 64), (64, 128, 128)],
}
BATCH, TOKENS = 8, 4096  # of `options`


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "grids")
    parser.add_argument("part", choices=PARTS, help="what to measure")
    add_measuring(parser, seconds=3.0)
    arguments = parser.parse_args()
    file = arguments.output / f"{arguments.part}.csv"
    rows = compare_all(PARTS[arguments.part](), file, arguments)
    if arguments.part == "scaling":
        write_rows(file, with_exponents(rows))


def scaling() -> Iterator[Comparison]:
    for kind, sizes in SIZES.items():
        for training in (False, True):
            for size in sizes:
                labels = {"grid": kind, "tokens": math.prod(size), "training": training}
                yield labels, {"laplacian": partial(build, size, training)}, "laplacian"


def options() -> Iterator[Comparison]:
    """As many tokens that count in every row but those of the half mask, which has half of them."""
    for size in ((TOKENS,), (64, 64), (16, 16, 16)):
        for training in (False, True):
            builders: dict[str, Callable[[], Call]] = {
                "plain": partial(build, size, training, batch=BATCH),
                "one token masked": partial(build, size, training, batch=BATCH, mask=almost_all),
                "half masked": partial(build, size, training, batch=BATCH, mask=first_half),
                "4 leading tokens": partial(build, size, training, batch=BATCH, prefix=4),
                "one token masked, plain PyTorch": partial(
                    build, size, training, batch=BATCH, mask=almost_all, backend="reference"
                ),
            }
            yield {"size": " x ".join(map(str, size)), "training": training}, builders, "plain"


PARTS: dict[str, Callable[[], Iterator[Comparison]]] = {"scaling": scaling, "options": options}


def almost_all(batch: int, size: tuple[int, ...]) -> Tensor:
    mask = torch.ones(batch, *size, dtype=torch.bool)
    mask.flatten(1)[:, -1] = False
    return mask.flatten(1)


def first_half(batch: int, size: tuple[int, ...]) -> Tensor:
    mask = torch.zeros(batch, *size, dtype=torch.bool)
    mask[:, : size[0] // 2] = True
    return mask.flatten(1)


def build(
    size: tuple[int, ...],
    training: bool,
    batch: int = 1,
    prefix: int = 0,
    mask: Callable[[int, tuple[int, ...]], Tensor] | None = None,
    backend: str | None = None,
) -> Call:
    layer = LaplacianAttention(64, 2, axes=len(size), prefix=prefix).train(training)
    tokens = torch.randn(batch, prefix + math.prod(size), 64)
    given = None if mask is None else mask(batch, size)

    def forward() -> Tensor:
        with ops.use_backend(backend):
            return layer(tokens, size, given)

    return inference_or_training(forward, training)


def with_exponents(rows: list[Row]) -> list[Row]:
    first: dict[tuple[object, object], Row] = {}
    found = []
    for row in rows:
        base = first.setdefault((row["grid"], row["training"]), row)
        more = math.log(row["tokens"] / base["tokens"]) or math.nan
        slopes = {
            f"exponent_of_{name}": round(math.log(row[column] / base[column]) / more, 3)
            for name, column in (("time", "milliseconds"), ("memory", "peak_megabytes"))
        }
        found.append(row | {key: "" if math.isnan(value) else value for key, value in slopes.items()})
    return found


if __name__ == "__main__":
    main()
