"""Train on handwritten digits in two minutes, and draw what was learned: `make demo`.

    python examples/digits.py --output runs/demo

The digits come with scikit-learn: nothing is fetched. It needs `pip install 'laplacianformer[plot,train]'`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from laplacianformer import plots
from laplacianformer._util.errors import InputError
from laplacianformer._util.files import check_folder
from laplacianformer.classification.pictures import draw_confusion, draw_predictions
from laplacianformer.data import images
from laplacianformer.inspect.attention_maps import attention_maps
from laplacianformer.weights import Weights, load_weights

SHOWN = 24  # pictures on the sheet of predictions
LOOKED_INTO = 4  # pictures whose attention is drawn


@dataclass(frozen=True)
class Trained:
    """What a training leaves: files, and the pictures it has not seen with their classes."""

    weights: Path
    metrics: Path
    held_out: list[tuple[Image.Image, int]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 2, and one line, for what can't be used."""
    parser = argparse.ArgumentParser(
        description="Trains laplacianformer_nano on the digits that come with scikit-learn (no download) and writes "
        "the weights, a training curve, a sheet of predictions and attention maps."
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="folder written to (default: %(default)s)",
    )
    output = parser.parse_args(arguments).output
    try:
        run(output)
    except (InputError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def run(output: Path) -> None:
    """Train, draw, print a table of what is where."""
    plots.require()
    check_folder(output)
    trained = _train(output)
    loaded = load_weights(trained.weights)
    result = classify(loaded, trained.held_out)
    drawn = draw(loaded, trained, result, output)
    right, total = int((result.predicted == result.truth).sum()), len(result.truth)
    table = Table(title="Handwritten digits that were held out")
    table.add_column("")
    table.add_column("", overflow="fold")
    table.add_row("right", f"{right} of {total} ({100 * right / total:.1f} %)")
    table.add_row("weights", str(trained.weights))
    for name, path in drawn.items():
        table.add_row(name, str(path))
    Console().print(table)


def _train(output: Path) -> Trained:
    try:
        from laplacianformer.classification import load_recipe, train
        from laplacianformer.commands.progress import ProgressReport
        from laplacianformer.data.indexed import digits
    except ImportError as error:
        raise InputError(f"training needs more packages ({error}): pip install 'laplacianformer[train]'") from None
    (output / "checkpoint.pt").unlink(missing_ok=True)  # of an earlier demo, which is not gone on with
    result = train(load_recipe("digits"), output, report=ProgressReport())
    held_out = digits(training=False)
    return Trained(result.weights, output / "metrics.csv", [held_out.read(index) for index in range(len(held_out))])


@dataclass(frozen=True)
class Classified:
    inputs: torch.Tensor  # (N, channels, height, width)
    probabilities: np.ndarray[tuple[int, int], np.dtype[np.float32]]  # (N, classes)
    truth: np.ndarray[tuple[int], np.dtype[np.int64]]

    @property
    def predicted(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self.probabilities.argmax(1)


@torch.inference_mode()
def classify(loaded: Weights, labelled: list[tuple[Image.Image, int]]) -> Classified:
    transform = images.to_input(loaded.input)
    inputs = torch.stack([transform(images.read(picture)) for picture, _ in labelled])
    probabilities = torch.cat([loaded.model(part).softmax(1) for part in inputs.split(64)])
    return Classified(inputs, probabilities.numpy(), np.array([target for _, target in labelled]))


def draw(loaded: Weights, trained: Trained, result: Classified, output: Path) -> dict[str, Path]:
    """The pictures, by name."""
    paths = {
        "training curve": output / "training.png",
        "predictions": output / "predictions.png",
        "confusions": output / "confusion.png",
        "attention maps": output / "attention.png",
    }
    plots.training_curve(trained.metrics, paths["training curve"])

    right = int((result.predicted == result.truth).sum())
    hardest_first = np.argsort(result.probabilities[np.arange(len(result.truth)), result.truth])
    chosen = [*hardest_first[: SHOWN // 3], *_spread(hardest_first[SHOWN // 3 :], SHOWN - SHOWN // 3)]
    draw_predictions(
        [images.to_picture(result.inputs[index], loaded.input) for index in chosen],
        result.predicted[chosen].tolist(),
        result.probabilities[chosen],
        result.truth[chosen].tolist(),
        loaded.classes,
        paths["predictions"],
        title=f"{right} of {len(result.truth)} right, the hardest first",
    )
    counts = np.zeros((len(loaded.classes),) * 2, dtype=int)
    np.add.at(counts, (result.truth, result.predicted), 1)
    draw_confusion(counts.tolist(), loaded.classes, paths["confusions"])

    rows = [_attention_row(loaded, result, index) for index in _spread(hardest_first, LOOKED_INTO)]
    plots.attention_map(rows, paths["attention maps"])
    return paths


def _attention_row(loaded: Weights, result: Classified, index: int) -> plots.AttentionRow:
    return plots.AttentionRow(
        title=loaded.classes[result.truth[index]],
        picture=images.to_picture(result.inputs[index], loaded.input),
        maps=attention_maps(loaded.model, result.inputs[index]),
    )


def _spread(values: np.ndarray[tuple[int], np.dtype[np.int64]], count: int) -> list[int]:
    """`count` of the values, evenly from the first to the last."""
    return [int(values[place]) for place in np.linspace(0, len(values) - 1, min(count, len(values))).astype(int)]


if __name__ == "__main__":
    main()
