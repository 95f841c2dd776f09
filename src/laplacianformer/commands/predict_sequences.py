"""`laplacianformer predict` for sequence encoders."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from laplacianformer._util.errors import InputError
from laplacianformer._util.text import printable
from laplacianformer.commands import options, terminal

if TYPE_CHECKING:
    from laplacianformer.sequences import EncoderWeights, SequencePrediction


def predict(arguments: argparse.Namespace) -> int:
    """Print the most probable classes. The exit code is 0, 1 if some sequences failed, 2 if all did."""
    from laplacianformer import sequences

    if arguments.attention is not None:
        raise InputError("--attention draws what a classifier of images attends to: these weights are for sequences")
    loaded = sequences.load_encoder(arguments.weights)
    names, device = arguments.images, arguments.device
    with options.computing(arguments):
        predictions = list(sequences.predict(loaded, names, top=arguments.top, device=device))
    failed = [prediction for prediction in predictions if prediction.failure]
    if arguments.json:
        terminal.show_json(_as_json(loaded, predictions))
    elif len(failed) < len(predictions):
        terminal.show_wide(_table(loaded, predictions))
    for prediction in failed:
        terminal.warn(f"{_short(prediction.name)}: {prediction.failure}")
    return 0 if not failed else 1 if len(failed) < len(predictions) else 2


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
