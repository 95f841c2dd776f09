"""What `laplacianformer eval` does for models that give one class: of an image, or of a sequence."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from rich.table import Table

from laplacianformer.commands import tables, terminal, without


class Score(NamedTuple):
    """The accuracy of a task: what it is called for people, and in the result."""

    label: str
    name: str


def evaluate(
    arguments: argparse.Namespace,
    loaded: Any,
    batches: Iterable[Any],
    measure: Callable[..., Any],
    *,
    score: Score,
    unit: str,
    rows: Callable[[Any], Sequence[tuple[str, str]]],
) -> Sequence[str]:
    """Measure, write and print; returns a line for each item that can't be read.

    Args:
        measure: called with what was loaded, batches and a device.
        unit: what is classified: images, for example.
        rows: of the summary, after the score.
    """
    from laplacianformer import plots
    from laplacianformer._util import files
    from laplacianformer._util.devices import chosen_device
    from laplacianformer.classification import draw_confusion

    device = chosen_device(arguments.device)
    replacement = without.Replacement(arguments, loaded.model)
    plots.require_matplotlib()
    files.check_folder(arguments.output)
    result = measure(loaded, terminal.progress(batches, "evaluating"), device)
    again = terminal.progress(batches, "evaluating without attention")
    found = replacement.measured(score.name, lambda: getattr(measure(loaded, again, device), score.name))

    numbers, figure = arguments.output / "eval.json", arguments.output / "confusion.png"
    draw_confusion(result.confusion, loaded.classes, figure)
    given = {"weights": str(loaded.path), "data": arguments.data, "split": arguments.split}
    given |= {"batch_size": arguments.batch_size, "precision": arguments.precision}
    files.write_json(numbers, {**given, **asdict(result), **found})
    summary = Table("", "", title="Evaluation")
    summary.columns[1].justify = "right"
    summary.add_row(unit, f"{getattr(result, unit):,}")
    summary.add_row(score.label, f"{100 * getattr(result, score.name):.2f} %")
    for cells in (*without.rows(*score, found), *rows(result), ("device", result.device)):
        summary.add_row(*cells)
    classes = tables.per_class(unit, result.per_class, result.confusion)
    terminal.show(summary, classes, f"Saved: {numbers}, {figure}")
    unreadable: Sequence[str] = result.unreadable
    return unreadable
