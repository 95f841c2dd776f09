"""The most probable classes of images or sequences, as a table or as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from laplacianformer.commands import terminal


class Ranked(NamedTuple):
    """An image or a sequence with its classes and their probabilities, the best first; or the reason why it has none.

    `shown` is its name in the table, `name` that in JSON.
    """

    name: str
    shown: str
    ranking: Sequence[tuple[str, float]]
    failure: str


def show(kind: str, results: Sequence[Ranked], caption: str, weights: Mapping[str, Any], *, as_json: bool) -> int:
    """Print what was predicted. The exit code is 0, 1 if some failed, 2 if all did. `kind`: image, for example."""
    good = [result for result in results if not result.failure]
    failed = [result for result in results if result.failure]
    if as_json:
        predictions = [{kind: one.name, "classes": _classes(one)} for one in good]
        failures = [{kind: one.name, "reason": one.failure} for one in failed]
        terminal.show_json({"weights": weights, "predictions": predictions, "failures": failures})
    elif good:
        terminal.show_wide(_table(kind, good, caption))
    for one in failed:
        terminal.warn(f"{one.shown}: {one.failure}")
    return 0 if not failed else 1 if good else 2


def _classes(result: Ranked) -> list[dict[str, Any]]:
    return [{"class": name, "probability": value} for name, value in result.ranking]


def _table(kind: str, results: Sequence[Ranked], caption: str) -> Table:
    table = Table(caption=terminal.plain(caption), caption_justify="left")
    table.add_column(kind, overflow="fold")
    table.add_column("prediction")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("then")
    for result in results:
        (best, probability), *others = result.ranking
        then = ", ".join(f"{name} {100 * value:.1f} %" for name, value in others)
        cells = terminal.plain(result.shown), terminal.plain(best, "bold")
        table.add_row(*cells, f"{100 * probability:.1f} %", terminal.plain(then))
    return table
