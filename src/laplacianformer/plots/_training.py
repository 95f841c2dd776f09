"""The curves of a training run, from its metrics.csv."""

import csv
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from laplacianformer._util.errors import InputError
from laplacianformer._util.limits import overflows, shown
from laplacianformer.plots._figure import BLUE, ORANGE, new_figure, save


class Panel(NamedTuple):
    """One panel of the figure: columns of metrics.csv, and how they are drawn."""

    title: str
    unit: str
    column: str
    held_out: str = ""  # the column of held-out images, if there is one
    factor: float = 1
    log: bool = False


LARGE = (
    Panel("loss", "cross-entropy, nats", "loss", "validation_loss"),
    Panel("accuracy", "%", "accuracy", "validation_accuracy", factor=100),
)
SMALL = (
    Panel("learning rate", "", "lr"),
    Panel("gradient norm", "", "gradient_norm", log=True),
    Panel("kernel mean", "0: dead, 1: uniform", "kernel_mean"),
    Panel("residual of the inverse", "", "residual", log=True),
    Panel("speed", "images / s", "images_per_second"),
)


def draw_training(metrics_csv: Path, output: Path) -> None:
    """Loss and accuracy, and below them what shows trouble early. Columns without numbers are left out."""
    rows = _rows(metrics_csv)
    groups = [[panel for panel in group if _measured(rows, panel)] for group in (LARGE, SMALL)]
    groups = [group for group in groups if group]
    if not groups:
        raise InputError(f"{metrics_csv} has no numbers to draw: expected columns such as step, loss and lr")
    figure = new_figure(11, 6.4 if len(groups) == 2 else 4)
    parts = figure.subfigures(2, 1, height_ratios=(1.7, 1)) if len(groups) == 2 else [figure]
    for part, group in zip(parts, groups, strict=True):
        for axis, panel in zip(part.subplots(1, len(group), squeeze=False)[0], group, strict=True):
            draw = _draw_large if panel in LARGE else _draw_small
            draw(axis, rows, panel)
    save(figure, output)


def _draw_large(axis: Any, rows: list[dict[str, str]], panel: Panel) -> None:
    steps, values = _column(rows, panel.column, panel.factor)
    axis.plot(steps, values, color=BLUE, linewidth=0.8, alpha=0.35)
    axis.plot(steps, _smooth(values), color=BLUE, linewidth=2, label="training, running mean")
    steps, values = _column(rows, panel.held_out, panel.factor)
    percent = panel.unit == "%"
    if steps:
        axis.plot(steps, values, "o-", color=ORANGE, markersize=5, linewidth=1.5, label="held out")
        last = f"{values[-1]:.1f} %  " if percent else f"{values[-1]:.3f}  "
        offset = {"xytext": (0, -16 if percent else 10), "textcoords": "offset points", "ha": "right"}
        axis.annotate(last, (steps[-1], values[-1]), color=ORANGE, weight="bold", **offset)
    axis.set_ylim(bottom=0, top=101 if percent else None)
    axis.legend(frameon=False, loc="lower right" if percent else "upper right")
    _style(axis, panel, 10)


def _draw_small(axis: Any, rows: list[dict[str, str]], panel: Panel) -> None:
    steps, values = _column(rows, panel.column, panel.factor)
    axis.plot(steps, values, color=BLUE, linewidth=1.2)
    if panel.log and min(values) > 0:
        axis.set_yscale("log")
        few_decades = max(values) < 100 * min(values)
        axis.yaxis.get_major_locator().set_params(subs=(1, 2, 5) if few_decades else (1,))
    else:
        axis.set_ylim(bottom=0)
    _style(axis, panel, 8)


def _style(axis: Any, panel: Panel, size: int) -> None:
    axis.set_title(panel.title, fontsize=size + 2, loc="left", weight="bold")
    axis.set_xlabel("step", fontsize=size)
    axis.set_ylabel(panel.unit, fontsize=size)
    axis.tick_params(which="both", labelsize=size)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.grid(color="#E5E5E5")
    axis.spines[["top", "right"]].set_visible(False)


def _measured(rows: list[dict[str, str]], panel: Panel) -> bool:
    return any(_column(rows, name)[0] for name in (panel.column, panel.held_out))


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"can't read the metrics in {path}: {error}") from None
    for line, row in enumerate(rows, 2):
        for name, value in row.items():
            if isinstance(value, str) and overflows(value):
                raise InputError(f"{path}: {name} in line {line} is larger than any float, {shown(value)}")
    return rows


def _column(rows: list[dict[str, str]], name: str, factor: float = 1) -> tuple[list[float], list[float]]:
    """Steps and values of the cells that hold finite numbers."""
    pairs = [(_number(row.get("step")), _number(row.get(name))) for row in rows]
    finite = [(step, factor * value) for step, value in pairs if math.isfinite(step) and math.isfinite(value)]
    return [step for step, _ in finite], [value for _, value in finite]


def _number(cell: str | None) -> float:
    try:
        return float(cell or "nan")
    except ValueError:
        return math.nan


def _smooth(values: list[float]) -> list[float]:
    """A running mean over a twentieth of the curve, shorter at its ends."""
    reach = max(1, len(values) // 40)
    return [float(np.mean(values[max(0, i - reach) : i + reach + 1])) for i in range(len(values))]
