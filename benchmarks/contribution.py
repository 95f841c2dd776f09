"""What the attention of the weights in the package is worth: top-1 on CIFAR-10 with the global branch changed.

    python benchmarks/contribution.py cifar10/             DIR/val/CLASS/*.png, or what `laplacianformer eval` reads

In the layers of one stage or of all, the global branch Z L is replaced by its mean over the queries of the image, or
left out; the convolution beside it stays. Nothing is trained again. Writes results/benchmarks/models/contribution.csv.
All variants see the same images: `lost` are those that only the unchanged model has right, `gained` those that only the
changed one has, and `change` is their difference in points, with its standard error. Beside it, diagnosis.csv has what
`laplacianformer.diagnose` says of each layer on 100 of the images.
"""

import argparse
from dataclasses import asdict
from functools import partial
from itertools import product

import torch
from comparing import RESULTS, parser_of, progress, show
from torch import Tensor, nn

from laplacianformer import assets as shipped
from laplacianformer import diagnose, load_weights
from laplacianformer._util.measuring import in_child
from laplacianformer._util.provenance import provenance
from laplacianformer.data._batch import NO_LABEL
from laplacianformer.data._evaluation import evaluation_batches
from laplacianformer.data._labels import Renumbered, numbers_among
from laplacianformer.data._sources import Source, open_images, parse
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.inspect import without_attention
from laplacianformer.weights import Weights

BRANCHES = {"mean over queries": "mean", "off": "off"}


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "models")
    parser.add_argument("data", metavar="[READER:]DIR", help="CIFAR-10, as `laplacianformer eval --data` takes it")
    parser.add_argument("--images", type=int, metavar="N", help="spread evenly over the held-out ones (default: all)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), metavar="N", help="of torch")
    arguments = parser.parse_args()
    layers, rows = in_child(partial(measure, arguments))
    write_rows(arguments.output / "diagnosis.csv", layers)
    write_rows(arguments.output / "contribution.csv", rows)
    show(rows)


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """The rows of both tables."""
    torch.set_num_threads(arguments.threads)
    loaded = load_weights(shipped.PATH)
    images, targets = read(loaded, arguments.data, arguments.images)
    some = images[:: max(1, len(images) // 100)]  # of all classes
    diagnosed = [asdict(layer) | provenance() for layer in diagnose(loaded.model, some)]
    stages: list[nn.Module] = list(loaded.model.stages)  # type: ignore[arg-type]
    parts = {"all": None} | {str(number): [f"stages.{number - 1}"] for number in range(1, len(stages) + 1)}
    before = correct(loaded.model, images, targets)
    rows = [row("-", "as trained", before, before)]
    for (stage, layers), (name, branch) in progress(list(product(parts.items(), BRANCHES.items())), "variants"):
        with without_attention(loaded.model, branch, layers):
            rows.append(row(stage, name, before, correct(loaded.model, images, targets)))
    return diagnosed, [one | provenance() for one in rows]


def read(loaded: Weights, data: str, count: int | None) -> tuple[Tensor, Tensor]:
    """Held-out images as the model expects them, and their labels."""
    reader, root = parse(data)
    source = Source(reader or "folder", root, "validation", len(loaded.classes), count, inside=loaded.classes)
    opened = open_images(source)
    numbers = numbers_among(opened.classes, loaded.classes, data, "the weights don't")
    batches = list(Renumbered(evaluation_batches(opened, loaded.input, 100, 0), numbers))
    images, targets = torch.cat([batch.images for batch in batches]), torch.cat([batch.targets for batch in batches])
    return images[targets != NO_LABEL], targets[targets != NO_LABEL]


@torch.inference_mode()
def correct(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """For each image, whether the first class is the right one."""
    found = torch.cat([model(batch).argmax(1) for batch in images.split(100)])
    return found == targets


def row(stage: str, branch: str, before: Tensor, after: Tensor) -> Row:
    total, lost, gained = len(before), int((before & ~after).sum()), int((after & ~before).sum())
    change = gained - lost
    error = (lost + gained - change**2 / total) ** 0.5 / total  # of the mean of -1, 0 and 1 over the images
    return {
        "stage": stage,
        "branch": branch,
        "images": total,
        "top1": round(after.float().mean().item(), 6),
        "change": round(100 * change / total, 2),
        "standard_error": round(100 * error, 2),
        "lost": lost,
        "gained": gained,
    }


if __name__ == "__main__":
    main()
