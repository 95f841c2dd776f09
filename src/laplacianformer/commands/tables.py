"""Tables that several commands print."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from laplacianformer.commands import terminal

MOST_CLASSES = 20  # rows of the table of classes


def per_class(what: str, accuracies: Mapping[str, float | None], confusion: Sequence[Sequence[int]]) -> Table:
    """The accuracy of each class, the worst first, and what it is confused with. `what`: images, for example."""
    table = Table(title="Classes, the worst first")
    for title in ("class", what, "accuracy", "most often confused with"):
        table.add_column(title, justify="right" if title in (what, "accuracy") else "left")
    names = list(accuracies)
    order = sorted(range(len(names)), key=lambda index: accuracies[names[index]] or 0.0)
    for index in order[:MOST_CLASSES]:
        wrong = list(confusion[index])
        total, wrong[index] = sum(wrong), 0
        other = f"{names[wrong.index(max(wrong))]} ({max(wrong)})" if max(wrong) else "-"
        accuracy = accuracies[names[index]]
        percent = "-" if accuracy is None else f"{100 * accuracy:.1f} %"
        table.add_row(terminal.plain(names[index]), str(total), percent, terminal.plain(other))
    if len(names) > MOST_CLASSES:
        table.caption = f"{len(names) - MOST_CLASSES} better classes are in eval.json"
    return table
