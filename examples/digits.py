"""Train on handwritten digits in two minutes, and draw what was learned: `make demo`.

    python examples/digits.py --output runs/demo

The digits come with scikit-learn: nothing is downloaded. It needs `pip install 'laplacianformer[plot,train]'`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from laplacianformer import InputError, cli, plots
from laplacianformer.classification import draw_confusion, draw_predictions, open_batches
from laplacianformer.inspect import token_attention
from laplacianformer.weights import Weights, load_weights

PREDICTIONS = 24  # images in the figure of predictions
ATTENTION = 4  # images in the figure of attention
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Input that can't be used ends with exit code 2 and one line."""
    parser = argparse.ArgumentParser(
        description="Trains laplacianformer_nano on the digits that come with scikit-learn (no download) and writes "
        "the weights, the training curves, and figures of predictions, confusions and attention."
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="folder to write to (default: %(default)s)",
    )
    output = parser.parse_args(arguments).output
    try:
        plots.require_matplotlib()
        train(output)
        loaded = load_weights(output / "model.safetensors")
        result = classify(loaded)
        figures = draw(loaded, result, output)
    except (InputError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print_table(result, {"weights": loaded.path, **figures})


def train(output: Path) -> None:
    """The same as `laplacianformer train --recipe digits --output DIR`."""
    for checkpoint in output.glob("checkpoint*.pt"):  # of an earlier demo: this one starts anew
        checkpoint.unlink()
    cli.main(["train", "--recipe", "digits", "--output", str(output)])


@dataclass(frozen=True)
class Classified:
    """The held-out images and what the model says about them."""

    inputs: torch.Tensor  # (N, channels, height, width), normalised
    probabilities: Array  # (N, classes)
    truth: np.ndarray[tuple[int, ...], np.dtype[np.int64]]  # (N,)

    @property
    def predicted(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return self.probabilities.argmax(1)

    @property
    def correct(self) -> int:
        return int((self.predicted == self.truth).sum())


@torch.inference_mode()
def classify(loaded: Weights) -> Classified:
    batches = list(open_batches(loaded, "digits"))
    probabilities = torch.cat([loaded.model(batch.images).softmax(1) for batch in batches])
    inputs, truth = (torch.cat([batch[part] for batch in batches]) for part in (0, 1))
    return Classified(inputs, probabilities.numpy(), truth.numpy())


def draw(loaded: Weights, result: Classified, output: Path) -> dict[str, Path]:
    """The figures, by name."""
    paths = {
        "training curves": output / "training.png",
        "predictions": output / "predictions.png",
        "confusions": output / "confusion.png",
        "attention": output / "attention.png",
    }
    plots.draw_training(output / "metrics.csv", paths["training curves"])

    count = len(result.truth)
    hardest_first = np.argsort(result.probabilities[np.arange(count), result.truth])
    third = PREDICTIONS // 3
    chosen = [*hardest_first[:third], *evenly_spaced(hardest_first[third:], PREDICTIONS - third)]
    draw_predictions(
        [pixels(result.inputs[index], loaded) for index in chosen],
        result.predicted[chosen].tolist(),
        result.probabilities[chosen],
        result.truth[chosen].tolist(),
        loaded.classes,
        paths["predictions"],
        title=f"{result.correct} of {count} correct, the hardest first",
    )

    confusion = np.zeros((len(loaded.classes),) * 2, dtype=int)
    np.add.at(confusion, (result.truth, result.predicted), 1)
    draw_confusion(confusion.tolist(), loaded.classes, paths["confusions"])

    rows = [
        plots.AttentionFigureRow(
            title=loaded.classes[result.truth[index]],
            image=pixels(result.inputs[index], loaded),
            stages=token_attention(loaded.model, result.inputs[index]),
        )
        for index in evenly_spaced(hardest_first, ATTENTION)
    ]
    plots.draw_attention(rows, paths["attention"])
    return paths


def pixels(model_input: torch.Tensor, loaded: Weights) -> Array:
    """What the model saw, (height, width, channels) from 0 to 1: the normalisation undone."""
    mean, std = (torch.tensor(loaded.input[key])[:, None, None] for key in ("mean", "std"))
    return (model_input * std + mean).clamp(0, 1).permute(1, 2, 0).numpy()


def evenly_spaced(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], count: int) -> list[int]:
    """`count` of the values, from the first to the last."""
    return [int(values[index]) for index in np.linspace(0, len(values) - 1, min(count, len(values))).astype(int)]


def print_table(result: Classified, paths: dict[str, Path]) -> None:
    count = len(result.truth)
    table = Table(title="Held-out handwritten digits")
    table.add_column("")
    table.add_column("", overflow="fold")
    table.add_row("correct", f"{result.correct} of {count} ({100 * result.correct / count:.1f} %)")
    for name, path in paths.items():
        table.add_row(name, str(path))
    Console().print(table)


if __name__ == "__main__":
    main()
