"""Top-1 of the weights in the package, and of the ONNX files made from them, on CIFAR-10.

    python benchmarks/export_accuracy.py cifar10/          DIR/val/CLASS/*.png, or what `laplacianformer eval` reads

Writes results/benchmarks/export/accuracy.csv. `difference` is the largest difference of a logit on random images, over
the largest logit.
"""

from dataclasses import replace
from functools import partial

from comparing import RESULTS, parser_of, show
from torch import nn

from laplacianformer import assets as shipped
from laplacianformer import weights
from laplacianformer._util.measuring import in_child
from laplacianformer._util.provenance import provenance
from laplacianformer.classification import _evaluation as evaluate
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.export._check import Runner, differences
from laplacianformer.export._int8 import quantised
from laplacianformer.export._onnx_model import onnx_runner, to_onnx
from laplacianformer.export._trace import exportable


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
    onnx = to_onnx(exportable(loaded.model), loaded.metadata)
    files = {"onnx": onnx, "onnx, int8": quantised(onnx)}
    before = evaluate.evaluate(loaded, evaluate.open_batches(loaded, data))
    rows: list[Row] = [{"form": "PyTorch", "images": before.images, "top1": before.top1, "change": 0.0}]
    rows[0] |= {"difference": 0.0, "megabytes": round(shipped.PATH.stat().st_size / 1e6, 2)} | provenance()
    for form, file in files.items():
        run = onnx_runner(file)
        after = evaluate.evaluate(replace(loaded, model=Run(run)), evaluate.open_batches(loaded, data))
        row = {"form": form, "images": after.images, "top1": after.top1, "change": round(after.top1 - before.top1, 6)}
        worst = max(difference.relative for difference in differences(loaded, run))
        rows.append(row | {"difference": f"{worst:.1e}", "megabytes": round(len(file) / 1e6, 2)} | provenance())
    return rows


if __name__ == "__main__":
    main()
