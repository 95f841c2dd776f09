"""Segmenters at high resolution: time and peak memory of one image, in one run.

    python benchmarks/segmentation.py                  writes results/benchmarks/segmentation/high_resolution.csv
    python benchmarks/segmentation.py --threads 2 --seconds 20
    python benchmarks/segmentation.py --sizes 64x128 --seconds 0.1 --output /tmp/try

Semantic FPN for 19 classes on each backbone, at 512 x 1024 and 1024 x 2048 pixels: a forward pass, and one with the
loss and the backward pass.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from comparing import RESULTS, Builders, Comparison, add_measuring, compare_all, inference_or_training, parser_of

from laplacianformer._util.measuring import Call
from laplacianformer.segmentation import semantic_fpn
from laplacianformer.segmentation._task import pixel_loss

CLASSES = 19
BACKBONES = ("laplacianformer_tiny", "pvt_v2_b1", "swin_tiny_patch4_window7_224")
Size = tuple[int, int]


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "segmentation")
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=size,
        default=[(512, 1024), (1024, 2048)],
        metavar="HEIGHTxWIDTH",
        help="of the image (default: 512x1024 1024x2048)",
    )
    add_measuring(parser, seconds=10.0)
    arguments = parser.parse_args()
    compare_all(comparisons(arguments.sizes), arguments.output / "high_resolution.csv", arguments)


def size(text: str) -> Size:
    """HEIGHTxWIDTH, multiples of 32, which Swin needs."""
    try:
        height, width = (int(part) for part in text.split("x"))
    except ValueError:
        height = width = 0
    if min(height, width) < 32 or height % 32 or width % 32:
        raise argparse.ArgumentTypeError(f"expected HEIGHTxWIDTH, multiples of 32, got {text!r}")
    return height, width


def comparisons(sizes: Sequence[Size]) -> Iterator[Comparison]:
    for height, width in sizes:
        for training in (False, True):
            builders: Builders = {name: partial(build, name, (height, width), training) for name in BACKBONES}
            yield {"height": height, "width": width, "training": training}, builders, "pvt_v2_b1"


def build(name: str, size: Size, training: bool) -> Call:
    options: dict[str, Any] = {"img_size": size} if name.startswith("swin") else {}
    model = semantic_fpn(name, CLASSES, backbone_args=options).train(training)
    images, targets = torch.randn(1, 3, *size), torch.randint(0, CLASSES, (1, *size))

    def forward() -> torch.Tensor:
        logits = model(images)
        return pixel_loss(logits, targets) if training else logits

    return inference_or_training(forward, training)


if __name__ == "__main__":
    main()
