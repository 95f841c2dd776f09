"""Top-1 of the weights in the package on CIFAR-10, in each precision, and of the files made from them.

    python benchmarks/export_accuracy.py cifar10/          DIR/val/CLASS/*.png, or what `laplacianformer eval` reads

Writes results/benchmarks/export/accuracy.csv. `difference` is the largest difference of a logit on random images, over
the largest logit. A pt2 package is compiled for the image size of the weights, which takes minutes; its calibration
images are those of `laplacianformer export`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from comparing import RESULTS, parser_of, show
from torch import nn

from laplacianformer import assets as shipped
from laplacianformer import weights
from laplacianformer._util.measuring import in_child
from laplacianformer._util.provenance import provenance
from laplacianformer.classification import _evaluation as evaluate
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.export._aot_inductor import pt2_runner, to_pt2
from laplacianformer.export._check import Runner, differences
from laplacianformer.export._int8 import quantised
from laplacianformer.export._int8_layers import calibration_images, to_int8
from laplacianformer.export._onnx_model import onnx_runner, to_onnx


class Run(nn.Module):
    """A function in the form of a model, to be evaluated like one."""

    def __init__(self, run: Runner) -> None:
        super().__init__()
        self.run = run

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.run(images)


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "export")
    parser.add_argument("data", metavar="[READER:]DIR", help="CIFAR-10, as `laplacianformer eval --data` takes it")
    arguments = parser.parse_args()
    show(in_child(partial(measure, arguments.data, arguments.output / "accuracy.csv")))


def measure(data: str, output: Path) -> list[Row]:
    """The file is written after each form, so that a run that is stopped is not lost."""
    loaded = weights.load_weights(shipped.PATH)
    rows: list[Row] = []
    for form, make in forms(loaded, data).items():
        file, run = make()
        found = evaluate.evaluate(replace(loaded, model=Run(run)), evaluate.open_batches(loaded, data))
        change = found.top1 - rows[0]["top1"] if rows else 0.0
        row = {"form": form, "images": found.images, "top1": found.top1, "change": round(change, 6)}
        only = tuple(loaded.input["size"][1:]) if form.startswith("pt2") else None
        worst = max(difference.relative for difference in differences(loaded, run, only))
        rows.append(row | {"difference": f"{worst:.1e}", "megabytes": round(len(file) / 1e6, 2)} | provenance())
        write_rows(output, rows)
    return rows


def forms(loaded: weights.Weights, data: str) -> dict[str, Callable[[], tuple[bytes, Runner]]]:
    """Each makes its file, and what runs it."""
    model, size, stored = loaded.model, tuple(loaded.input["size"][1:]), shipped.PATH.read_bytes()

    def onnx(change: Callable[[bytes], bytes] = bytes) -> tuple[bytes, Runner]:
        file = change(to_onnx(model, loaded.metadata))
        return file, onnx_runner(file)

    def int8() -> tuple[bytes, Runner]:
        file = to_pt2(to_int8(model, calibration_images(loaded, data)), loaded.metadata, size, "int8")
        return file, pt2_runner(file)

    return {
        "PyTorch": lambda: (stored, model),
        "PyTorch, bfloat16": lambda: (stored, torch.autocast("cpu", torch.bfloat16)(model)),
        "onnx": onnx,
        "onnx, int8": lambda: onnx(quantised),
        "pt2, int8": int8,
    }


if __name__ == "__main__":
    main()
