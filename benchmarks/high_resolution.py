"""Backbones at the image size of detectors: time and peak memory of the feature maps of one image, in one run.

    python benchmarks/high_resolution.py                  writes results/benchmarks/detection/high_resolution.csv
    python benchmarks/high_resolution.py --threads 2 --seconds 20

800 x 1333 pixels, padded to 800 x 1344 as detectors do. A forward pass, and one with its backward pass. Each model
computes its feature maps of strides 4 to 32, as for a feature pyramid.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from comparing import RESULTS, Builders, Comparison, add_measuring, compare_all, inference_or_training, parser_of

from laplacianformer._util.measuring import Call
from laplacianformer.training._feature_maps import FeatureMaps

SIZE = (800, 1344)
BACKBONES: dict[str, dict[str, Any]] = {
    "laplacianformer_tiny": {},
    "pvt_v2_b1": {},
    "swin_tiny_patch4_window7_224": {"img_size": SIZE},
}


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "detection")
    add_measuring(parser, seconds=10.0)
    arguments = parser.parse_args()
    compare_all(comparisons(), arguments.output / "high_resolution.csv", arguments)


def comparisons() -> Iterator[Comparison]:
    for training in (False, True):
        builders: Builders = {name: partial(build, name, training) for name in BACKBONES}
        yield {"height": 800, "width": 1333, "padded_width": 1344, "training": training}, builders, "pvt_v2_b1"


def build(name: str, training: bool) -> Call:
    maps = FeatureMaps(name, BACKBONES[name], 4, 32).train(training)
    images = torch.randn(1, 3, *SIZE)

    def forward() -> torch.Tensor:
        return sum(features.mean() for features in maps(images).values())

    return inference_or_training(forward, training)


if __name__ == "__main__":
    main()
