"""Top-1 of the weights in the package on CIFAR-10, in each precision, and of the files made from them.

    python benchmarks/export_accuracy.py cifar10/          DIR/val/CLASS/*.png, or what `laplacianformer eval` reads

Writes results/benchmarks/export/accuracy.csv. `difference` is the largest difference of a logit on random images, over
the largest logit. A pt2 package is compiled for the image size of the weights, which takes minutes; its calibration
images are those of `laplacianformer export`.
"""

from dataclasses import replace
from functools import partial

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
        self.forward = run


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "export")
    parser.add_argument("data", metavar="[READER:]DIR", help="CIFAR-10, as `laplacianformer eval --data` takes it")
    arguments = parser.parse_args()
    rows = in_child(partial(measure, arguments.data))
    write_rows(arguments.output / "accuracy.csv", rows)
    show(rows)


def measure(data: str) -> list[Row]:
    loaded = weights.load_weights(shipped.PATH)
    model, size = loaded.model, tuple(loaded.input["size"][1:])
    onnx = to_onnx(model, loaded.metadata)
    int8 = to_pt2(to_int8(model, calibration_images(loaded, data)), loaded.metadata, size, "int8")
    stored = shipped.PATH.read_bytes()
    forms: dict[str, tuple[bytes, Runner]] = {
        "PyTorch": (stored, model),
        "PyTorch, bfloat16": (stored, torch.autocast("cpu", torch.bfloat16)(model)),
        "pt2, int8": (int8, pt2_runner(int8)),
        "onnx": (onnx, onnx_runner(onnx)),
        "onnx, int8": (small := quantised(onnx), onnx_runner(small)),
    }
    rows: list[Row] = []
    for form, (file, run) in forms.items():
        found = evaluate.evaluate(replace(loaded, model=Run(run)), evaluate.open_batches(loaded, data))
        change = found.top1 - rows[0]["top1"] if rows else 0.0
        row = {"form": form, "images": found.images, "top1": found.top1, "change": round(change, 6)}
        only = size if form.startswith("pt2") else None
        worst = max(difference.relative for difference in differences(loaded, run, only))
        rows.append(row | {"difference": f"{worst:.1e}", "megabytes": round(len(file) / 1e6, 2)} | provenance())
    return rows


if __name__ == "__main__":
    main()
