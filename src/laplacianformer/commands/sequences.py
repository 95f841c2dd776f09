"""What `laplacianformer eval` and `laplacianformer predict` do with the weights of a sequence encoder."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from laplacianformer._util.errors import InputError
from laplacianformer._util.text import printable
from laplacianformer.commands import tables, terminal, without
from laplacianformer.commands.options import computing

if TYPE_CHECKING:
    from laplacianformer.sequences import EncoderWeights, SequenceEvaluation, SequencePrediction


def evaluate(arguments: argparse.Namespace) -> Sequence[str]:
    """Print and write accuracy and speed. Returns what could not be read."""
    from laplacianformer import plots, sequences
    from laplacianformer._util import files
    from laplacianformer._util.devices import chosen_device
    from laplacianformer.classification import draw_confusion

    loaded = sequences.load_encoder(arguments.weights)
    try:
        measure, open_batches = sequences.evaluate, sequences.open_batches
    except ImportError as error:
        raise InputError(f"evaluating an encoder needs {error.name}: pip install 'laplacianformer[train]'") from None
    options = {"batch_size": arguments.batch_size, "workers": arguments.workers}
    batches = open_batches(loaded, arguments.data, arguments.split, **options)
    device = chosen_device(arguments.device)
    replacement = without.Replacement(arguments, loaded.model)
    plots.require_matplotlib()
    files.check_folder(arguments.output)
    result = measure(loaded, terminal.progress(batches, "evaluating"), device)
    again = terminal.progress(batches, "evaluating without attention")
    found = replacement.measured("accuracy", lambda: measure(loaded, again, device).accuracy)

    numbers, figure = arguments.output / "eval.json", arguments.output / "confusion.png"
    draw_confusion(result.confusion, loaded.classes, figure)
    given = {"weights": str(loaded.path), "data": arguments.data, "split": arguments.split}
    given |= {"batch_size": arguments.batch_size, "precision": arguments.precision}
    files.write_json(numbers, {**given, **asdict(result), **found})
    classes = tables.per_class("sequences", result.per_class, result.confusion)
    terminal.show(_summary(result, found), classes, f"Saved: {numbers}, {figure}")
    return result.unreadable


def predict(arguments: argparse.Namespace) -> int:
    """Print the most probable classes. The exit code is 0, 1 if some sequences failed, 2 if all did."""
    from laplacianformer import sequences

    if arguments.attention is not None:
        raise InputError("--attention draws what a classifier of images attends to: these weights are for sequences")
    loaded = sequences.load_encoder(arguments.weights)
    names, device = arguments.images, arguments.device
    with computing(arguments):
        predictions = list(sequences.predict(loaded, names, top=arguments.top, device=device))
    failed = [prediction for prediction in predictions if prediction.failure]
    if arguments.json:
        terminal.show_json(_as_json(loaded, predictions))
    elif len(failed) < len(predictions):
        terminal.show_wide(_table(loaded, predictions))
    for prediction in failed:
        terminal.warn(f"{_short(prediction.name)}: {prediction.failure}")
    return 0 if not failed else 1 if len(failed) < len(predictions) else 2


def _summary(result: "SequenceEvaluation", found: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Evaluation")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("sequences", f"{result.sequences:,}")
    table.add_row("accuracy", f"{100 * result.accuracy:.2f} %")
    for cells in without.rows("accuracy", "accuracy", found):
        table.add_row(*cells)
    table.add_row("model alone", f"{result.sequences_per_second:,.0f} sequences/s")
    table.add_row("device", result.device)
    return table


def _table(loaded: "EncoderWeights", predictions: Sequence["SequencePrediction"]) -> Table:
    mixer, length = loaded.model.arguments["attention"], loaded.model.length
    caption = f"{loaded.sequence}, {mixer} attention, up to {length:,} tokens"
    table = Table(caption=terminal.plain(caption), caption_justify="left")
    table.add_column("sequence", overflow="fold")
    table.add_column("prediction")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("then")
    for prediction in predictions:
        if not prediction.failure:
            (best, probability), *others = prediction.ranking
            then = ", ".join(f"{name} {100 * value:.1f} %" for name, value in others)
            name, best_class = terminal.plain(_short(prediction.name)), terminal.plain(best, "bold")
            table.add_row(name, best_class, f"{100 * probability:.1f} %", terminal.plain(then))
    return table


def _as_json(loaded: "EncoderWeights", predictions: Sequence["SequencePrediction"]) -> dict[str, Any]:
    return {
        "weights": {
            "file": str(loaded.path),
            "architecture": loaded.metadata["architecture"],
            "sequence": loaded.sequence,
            "classes": loaded.classes,
        },
        "predictions": [
            {
                "sequence": prediction.name,
                "classes": [{"class": name, "probability": value} for name, value in prediction.ranking],
            }
            for prediction in predictions
            if not prediction.failure
        ],
        "failures": [
            {"sequence": prediction.name, "reason": prediction.failure}
            for prediction in predictions
            if prediction.failure
        ],
    }


def _short(name: str) -> str:
    """The beginning of a long expression."""
    text = printable(name)
    return text if len(text) <= 120 else f"{text[:117]}..."
