"""Backbones at the size that detectors see: time and peak memory of the feature maps of one image, in one run.

    python benchmarks/high_resolution.py                             writes results/detection/high_resolution.csv
    python benchmarks/high_resolution.py --threads 2 --seconds 20

800 x 1333 pixels, padded to 800 x 1344 as detectors do. Forward, and forward with backward. Each model computes its
feature maps of strides 4 to 32, as under a feature pyramid.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import Call, in_child
from models import Comparison, Row, compare, run, show, write

from laplacianformer._util.provenance import provenance
from laplacianformer.detection.backbone import FeatureMaps

RESULTS = Path(__file__).parent.parent / "results" / "detection"
SIZE = (800, 1344)
BACKBONES: dict[str, dict[str, Any]] = {
    "laplacianformer_tiny": {},
    "pvt_v2_b1": {},
    "swin_tiny_patch4_window7_224": {"img_size": SIZE},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="(default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="a measured call (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder (default: results/detection)")
    arguments = parser.parse_args()
    origin = in_child(partial(provenance, arguments.device))
    rows: list[Row] = []
    for labels, builders, base in comparisons():
        rows += [labels | row | origin for row in compare(builders, base, arguments)]
        write(rows, arguments.output / "high_resolution.csv")
    show(rows)


def comparisons() -> Iterator[Comparison]:
    for training in (False, True):
        builders: dict[str, Callable[[], Call]] = {name: partial(build, name, training) for name in BACKBONES}
        yield {"height": 800, "width": 1333, "padded_width": 1344, "training": training}, builders, "pvt_v2_b1"


def build(name: str, training: bool) -> Call:
    maps = FeatureMaps(name, BACKBONES[name], 4, 32).train(training)
    images = torch.randn(1, 3, *SIZE)

    def forward() -> torch.Tensor:
        return sum(features.mean() for features in maps(images).values())

    return run(forward, training)


if __name__ == "__main__":
    main()
