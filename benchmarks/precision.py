"""Rounding: the error of each size's logits in float32 and under bfloat16 autocast, against float64.

    python benchmarks/precision.py

Random weights and images of 64 x 64 pixels; the largest error over the largest logit. Writes
results/benchmarks/models/precision.csv.
"""

import copy

import timm
import torch
from comparing import RESULTS, parser_of, progress, show

from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.inspect._cost import SIZES


def main() -> None:
    arguments = parser_of(__doc__, RESULTS / "models").parse_args()
    rows: list[Row] = []
    for size in progress(SIZES, "precision"):
        rows.append({"name": f"laplacianformer_{size}", "seed": 0} | errors(f"laplacianformer_{size}") | provenance())
        write_rows(arguments.output / "precision.csv", rows)
    show(rows)


@torch.inference_mode()
def errors(name: str) -> dict[str, str]:
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    images = torch.randn(4, 3, 64, 64)
    exact = copy.deepcopy(model).double()(images.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(images)
    results = {"float32": model(images), "bfloat16_autocast": rounded}
    return {key: f"{((value - exact).abs().max() / exact.abs().max()).item():.2e}" for key, value in results.items()}


if __name__ == "__main__":
    main()
