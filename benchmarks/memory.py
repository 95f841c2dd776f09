"""Peak memory of inference beyond the model itself, in the first call of a process and in a later one.

    python benchmarks/memory.py

The first call also loads code and starts threads, which stay. Writes results/benchmarks/models/memory.csv.
"""

import argparse
from functools import partial

import torch
from comparing import RESULTS, parser_of, progress, show
from models import IMAGE_SIZES, build_model

from laplacianformer._util.measuring import in_child, peak_memory
from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.rows import Row, write_rows

NAMES = ("laplacianformer_tiny", "floor", "pvt_v2_b1")


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "models")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of torch (default: %(default)s)")
    arguments = parser.parse_args()
    rows: list[Row] = []
    cases = [(size, batch, name) for size in IMAGE_SIZES for batch in (1, 4) for name in NAMES]
    for size, batch, name in progress(cases, "memory"):
        rows.append(
            {"size": size, "batch": batch, "name": name} | in_child(partial(measure, size, batch, name, arguments))
        )
        write_rows(arguments.output / "memory.csv", rows)
    show(rows)


def measure(size: int, batch: int, name: str, arguments: argparse.Namespace) -> Row:
    torch.set_num_threads(arguments.threads)
    call = build_model(name, (size, size), batch, training=False)
    first, later = peak_memory(call, "cpu"), peak_memory(call, "cpu")
    return {"first_megabytes": round(first, 1), "later_megabytes": round(later, 1)} | provenance(
        threads=arguments.threads
    )


if __name__ == "__main__":
    main()
