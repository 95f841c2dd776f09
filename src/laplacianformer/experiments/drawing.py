"""The style of the plots: legible at half a page, in print, and to colour-blind readers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.statistics import summary

# Okabe and Ito's colours and two greys, each with its own marker and dashes, so that no line is identified by colour
# alone.
STYLES: list[dict[str, Any]] = [
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
    {"color": "#E69F00", "marker": "v", "linestyle": (0, (5, 1))},
    {"color": "#56B4E9", "marker": "P", "linestyle": (0, (3, 1, 1, 1))},
    {"color": "#F0E442", "marker": "X", "linestyle": (0, (1, 1))},
    {"color": "#000000", "marker": "<", "linestyle": (0, (7, 2))},
    {"color": "#888888", "marker": ">", "linestyle": (0, (4, 2, 1, 2))},
    {"color": "#BBBBBB", "marker": "*", "linestyle": (0, (2, 2))},
    {"color": "#7B3294", "marker": "h", "linestyle": (0, (6, 1, 1, 1))},
    {"color": "#8C510A", "marker": "d", "linestyle": (0, (3, 3))},
]


def tidy(axis: Any, *, x: str, y: str) -> None:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(color="#DDDDDD", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def log_ticks(axis: Any, values: Iterable[int]) -> None:
    """Make both axes logarithmic, with a tick at each of these values of x."""
    axis.set(xscale="log", yscale="log")
    ticks = sorted(set(values))
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)


def banded(axis: Any, points: Sequence[Row], column: str, names: Mapping[str, str]) -> None:
    """Held-out accuracy by epoch: the mean over seeds, with a band of one standard deviation.

    `names`: values of the column, and their labels.
    """
    for style, (value, label) in zip(STYLES, names.items(), strict=False):
        by_epoch: dict[float, list[float]] = {}
        for point in points:
            if point[column] == value:
                by_epoch.setdefault(float(point["epoch"]), []).append(100 * float(point["validation_accuracy"]))
        found = {epoch: summary(values) for epoch, values in sorted(by_epoch.items())}
        axis.plot(list(found), [each.mean for each in found.values()], **style, markersize=4, label=label)
        low, high = ([each.mean + sign * each.deviation for each in found.values()] for sign in (-1, 1))
        axis.fill_between(list(found), low, high, color=style["color"], alpha=0.2, linewidth=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
