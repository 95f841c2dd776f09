"""Rounding: the error of each size's logits in float32 and under bfloat16 autocast, against float64.

    python benchmarks/precision.py

Random weights and images of 64 x 64 pixels, largest error over the largest logit. Writes results/models/precision.csv.
"""

import argparse
import copy
from pathlib import Path

import timm
import torch
from models import show, write

import laplacianformer.inspect.cost
from laplacianformer._util.provenance import provenance

RESULTS = Path(__file__).parent.parent / "results" / "models"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder (default: results/models)")
    arguments = parser.parse_args()
    rows = []
    for size in laplacianformer.inspect.cost.SIZES:
        rows.append({"name": f"laplacianformer_{size}", "seed": 0} | errors(f"laplacianformer_{size}") | provenance())
        write(rows, arguments.output / "precision.csv")
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
