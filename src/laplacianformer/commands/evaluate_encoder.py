"""`laplacianformer eval` for sequence encoders."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from laplacianformer._util.errors import InputError
from laplacianformer.commands import tables, terminal, without

if TYPE_CHECKING:
    from laplacianformer.sequences import SequenceEvaluation


def evaluate(arguments: argparse.Namespace) -> Sequence[str]:
    """Measure and write; returns a line for each sequence that can't be read."""
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
