"""What the mask of padded batches does to the average precision of a detector: RetinaNet on Penn-Fudan.

    python benchmarks/padding.py pennfudan/ --work runs/padding                the recipe's budget
    python benchmarks/padding.py pennfudan/ --work runs/padding --epochs 15    a quarter of it

The recipe pennfudan-retinanet is trained as it is, and in the same way by a program in which the backbone doesn't get
the mask, so that landmarks average over the padding. Both detectors are evaluated with and without the mask, one by one
and in batches: one by one there is hardly any padding. Writes padding.csv to results/benchmarks/detection/ after each
detector; those that are there are not trained again, and a training that was stopped continues. Runs on Linux, on one
core. Trainings of another number of epochs are other rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from comparing import RESULTS, parser_of, progress, show
from torchvision.transforms.functional import pil_to_tensor
from trainings import PROGRAM, spent

from laplacianformer._util.provenance import provenance
from laplacianformer.detection import DetectorWeights, _backbone, load_detector, open_data
from laplacianformer.detection._coco import CocoImages
from laplacianformer.detection._scores import as_results, coco_scores
from laplacianformer.experiments.rows import Row, read_rows, write_rows

WITHOUT_MASK = """
import sys
from laplacianformer import cli
from laplacianformer.detection import _backbone
_backbone.padding_mask = lambda *_: None
sys.exit(cli.main(sys.argv[1:]))
"""
TRAINED = {"with": PROGRAM, "without": ("-c", WITHOUT_MASK)}
BATCHES = (1, 4, 8)  # images at a time in evaluation
EPOCHS = 60  # of the recipe


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "detection")
    parser.add_argument("data", type=Path, metavar="DIR", help="Penn-Fudan: DIR/instances_{train,val}.json and images")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the trainings")
    parser.add_argument("--epochs", type=int, default=EPOCHS, metavar="N", help="per training (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], metavar="N", help="(default: 0 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = arguments.output / "padding.csv"
    for seed, mask in progress([(seed, mask) for seed in arguments.seeds for mask in TRAINED], "detectors"):
        done = {(row["epochs"], row["seed"], row["trained"]) for row in read_rows(file)}
        if (str(arguments.epochs), str(seed), mask) not in done:
            found = list(rows_of(arguments.data, arguments.work, mask, seed, arguments.epochs))
            write_rows(file, [*read_rows(file), *found])
    show(read_rows(file))


def rows_of(data: Path, work: Path, mask: str, seed: int, epochs: int) -> Iterator[Row]:
    """Train one detector, and evaluate it in every way."""
    folder = work / f"{mask}-{seed}-{epochs}"
    seconds = spent(
        folder,
        *("train", "--recipe", "pennfudan-retinanet", "--data", str(data), "--resume", f"run.seed={seed}"),
        *(f"optimise.epochs={epochs}", f"run.eval_epochs={epochs}", "run.tensorboard=false"),
        program=TRAINED[mask],
    )
    loaded = load_detector(folder / "model.safetensors")
    images = open_data(loaded, str(data))
    for size in BATCHES:
        for evaluated in ("with", "without"):
            with nullcontext() if evaluated == "with" else hidden_padding():
                scores = evaluate_in_batches(loaded, images, size)
            yield {
                "epochs": epochs,
                "seed": seed,
                "trained": mask,
                "evaluated": evaluated,
                "batch": size,
                **{name: round(scores[name] or 0.0, 2) for name in ("AP", "AP50", "AP75")},
                "cpu_seconds": round(seconds),
                **provenance(threads=1),
            }


@torch.inference_mode()
def evaluate_in_batches(loaded: DetectorWeights, images: CocoImages, size: int) -> dict[str, float | None]:
    """COCO's numbers of boxes. The images of a batch follow each other in the data, and differ in size."""
    results = []
    for start in range(0, len(images), size):
        indices = range(start, min(start + size, len(images)))
        tensors = [pil_to_tensor(images.read(index)[0]) / 255 for index in indices]
        for index, found in zip(indices, loaded.model(tensors), strict=True):
            known = found["labels"] > 0  # outputs for the background are never trained
            results += as_results(images, index, {name: value[known] for name, value in found.items()})
    return coco_scores(images, results)["box"]


@contextmanager
def hidden_padding() -> Iterator[None]:
    """Backbones see padding as if it were a part of the images."""
    original = _backbone.padding_mask
    _backbone.padding_mask = lambda *_: None
    try:
        yield
    finally:
        _backbone.padding_mask = original


if __name__ == "__main__":
    main()
