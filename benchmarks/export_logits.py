"""What low precision changes in the logits of laplacianformer_tiny, on a folder of photographs.

    python benchmarks/export_logits.py DIR     DIR/CLASS/image

There are no weights of ImageNet for it, so they are random, of a fixed seed; the statistics of the whitening are those
of the calibration images. Writes results/benchmarks/export/logits.csv: against float32, the largest `difference` of a
logit over the largest logit; `error`, the root of the mean square of the differences over that of what the images
change, which is each logit without its mean over the images; and the `agreement` of the best class. The pt2 package is
compiled for 224 pixels and calibrated as `laplacianformer export` does it, which takes minutes.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import timm
import torch
from comparing import RESULTS, parser_of, show
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from laplacianformer import save_weights
from laplacianformer._util.measuring import in_child
from laplacianformer._util.provenance import provenance
from laplacianformer.classification._evaluation import open_batches
from laplacianformer.data._batch import NO_LABEL
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.export._aot_inductor import pt2_runner, to_pt2
from laplacianformer.export._int8_layers import calibration_images, to_int8
from laplacianformer.weights import Weights, load_weights

SIZE = (224, 224)


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "export")
    parser.add_argument("data", metavar="DIR", help="images in folders of classes")
    arguments = parser.parse_args()
    show(in_child(partial(measure, arguments.data, arguments.output / "logits.csv")))


def measure(data: str, output: Path) -> list[Row]:
    loaded = random_weights(data)
    update_bn(calibration_images(loaded, data), loaded.model.train())
    model = loaded.model.eval()
    exact = logits(model, loaded, data)
    rows: list[Row] = []
    for form, make in forms(model, loaded, data).items():
        row = {"form": form, "images": len(exact), **changes(exact, logits(make(), loaded, data))}
        rows.append(row | provenance())
        write_rows(output, rows)
    return rows


def random_weights(data: str) -> Weights:
    """Through a file, as weights that are downloaded. One output per folder of the data."""
    classes = sorted(path.name for path in Path(data).iterdir() if path.is_dir())
    torch.manual_seed(0)
    model = timm.create_model("laplacianformer_tiny", num_classes=len(classes))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.safetensors"
        save_weights(path, model, classes=classes, metadata={})
        return load_weights(path)


def forms(model: nn.Module, loaded: Weights, data: str) -> dict[str, Callable[[], Callable[[Tensor], Tensor]]]:
    return {
        "PyTorch, bfloat16": lambda: torch.autocast("cpu", torch.bfloat16)(model),
        "pt2, int8": lambda: pt2_runner(to_pt2(to_int8(model, calibration_images(loaded, data)), {}, SIZE, "int8")),
    }


def logits(run: Callable[[Tensor], Tensor], loaded: Weights, data: str) -> Tensor:
    """Of all images that can be read, (images, classes)."""

    def of_batches() -> Iterator[Tensor]:
        for batch in open_batches(loaded, data):
            yield run(batch.images[batch.targets != NO_LABEL]).double()

    with torch.inference_mode():
        return torch.cat(list(of_batches()))


def changes(exact: Tensor, found: Tensor) -> Row:
    difference, of_images = found - exact, exact - exact.mean(0)
    return {
        "difference": f"{(difference.abs().max() / exact.abs().max()).item():.1e}",
        "error": f"{(difference.square().mean() / of_images.square().mean()).sqrt().item():.1e}",
        "agreement": round((found.argmax(1) == exact.argmax(1)).double().mean().item(), 4),
    }


if __name__ == "__main__":
    main()
