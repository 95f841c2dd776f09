"""Pictures of a training, of predictions and of attention. Colours that colour-blind readers can tell apart."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from laplacianformer.attention_maps import AttentionMap
from laplacianformer.errors import InputError
from laplacianformer.files import replacing

BLUE, LIGHT_BLUE, ORANGE, LIGHT_GREY = "#0072B2", "#9CCDEB", "#D55E00", "#CCCCCC"
Array = np.ndarray[Any, Any]


def require() -> Any:
    """matplotlib's figures, apart from pyplot and its global state. Call it before a long run that ends in one."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures are drawn with matplotlib: pip install 'laplacianformer[plot]'") from None
    return Figure


def _figure(width: float, height: float) -> Any:
    return require()(figsize=(width, height), layout="constrained")


def _plain(text: str) -> str:
    """As it is: to matplotlib a pair of dollars means mathematics."""
    return text.replace("$", r"\$")


def _save(figure: Any, output: Path) -> None:
    with replacing(output) as file:
        figure.savefig(file, format="png", dpi=150)


# ---- training ----


class Panel(NamedTuple):
    """One panel of a training curve: columns of metrics.csv, and how they are shown."""

    title: str
    unit: str
    column: str
    held_out: str = ""  # the column of held-out pictures, if any
    factor: float = 1
    log: bool = False


LARGE = (
    Panel("loss", "cross-entropy, nats", "loss", "validation_loss"),
    Panel("accuracy", "%", "accuracy", "validation_accuracy", factor=100),
)
SMALL = (
    Panel("learning rate", "", "lr"),
    Panel("gradient norm", "", "gradient_norm", log=True),
    Panel("kernel mean", "0: dead, 1: blind", "kernel_mean"),
    Panel("residual of the inverse", "", "residual", log=True),
    Panel("speed", "images / s", "images_per_second"),
)


def training_curve(metrics_csv: Path, output: Path) -> None:
    """Loss and accuracy, and below them what shows trouble early. Columns without a number are left out."""
    rows = _rows(metrics_csv)
    groups = [[panel for panel in group if _measured(rows, panel)] for group in (LARGE, SMALL)]
    groups = [group for group in groups if group]
    if not groups:
        raise InputError(f"{metrics_csv} has no numbers to draw: expected columns such as step, loss and lr")
    figure = _figure(11, 6.4 if len(groups) == 2 else 4)
    parts = figure.subfigures(2, 1, height_ratios=(1.7, 1)) if len(groups) == 2 else [figure]
    for part, group in zip(parts, groups, strict=True):
        for axis, panel in zip(part.subplots(1, len(group), squeeze=False)[0], group, strict=True):
            draw = _large_curve if panel in LARGE else _small_curve
            draw(axis, rows, panel)
    _save(figure, output)


def _large_curve(axis: Any, rows: list[dict[str, str]], panel: Panel) -> None:
    steps, values = _column(rows, panel.column, panel.factor)
    axis.plot(steps, values, color=BLUE, linewidth=0.8, alpha=0.35)
    axis.plot(steps, _smooth(values), color=BLUE, linewidth=2, label="training, running mean")
    steps, values = _column(rows, panel.held_out, panel.factor)
    percent = panel.unit == "%"
    if steps:
        axis.plot(steps, values, "o-", color=ORANGE, markersize=5, linewidth=1.5, label="held out")
        last = f"{values[-1]:.1f} %  " if percent else f"{values[-1]:.3f}  "
        place = {"xytext": (0, -16 if percent else 10), "textcoords": "offset points", "ha": "right"}
        axis.annotate(last, (steps[-1], values[-1]), color=ORANGE, weight="bold", **place)
    axis.set_ylim(bottom=0, top=101 if percent else None)
    axis.legend(frameon=False, loc="lower right" if percent else "upper right")
    _style(axis, panel, 10)


def _small_curve(axis: Any, rows: list[dict[str, str]], panel: Panel) -> None:
    steps, values = _column(rows, panel.column, panel.factor)
    axis.plot(steps, values, color=BLUE, linewidth=1.2)
    if panel.log and min(values) > 0:
        axis.set_yscale("log")
        axis.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
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
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"can't read the metrics in {path}: {error}") from None


def _column(rows: list[dict[str, str]], name: str, factor: float = 1) -> tuple[list[float], list[float]]:
    """Steps and values of the cells that hold a finite number."""
    pairs = [(_number(row.get("step")), _number(row.get(name))) for row in rows]
    good = [(step, factor * value) for step, value in pairs if math.isfinite(step) and math.isfinite(value)]
    return [step for step, _ in good], [value for _, value in good]


def _number(cell: str | None) -> float:
    try:
        return float(cell or "nan")
    except ValueError:
        return math.nan


def _smooth(values: list[float]) -> list[float]:
    """A running mean over a twentieth of the curve, shorter at its ends."""
    reach = max(1, len(values) // 40)
    return [float(np.mean(values[max(0, i - reach) : i + reach + 1])) for i in range(len(values))]


# ---- predictions ----


def prediction_sheet(
    images: Sequence[Array],
    predicted: Sequence[int],
    probabilities: Array,
    truth: Sequence[int],
    classes: Sequence[str],
    output: Path,
    title: str = "",
) -> None:
    """Each picture (height, width, 3) from 0 to 1 with its most probable classes as bars; wrong ones say so.

    probabilities: (pictures, classes).
    """
    classes = [_plain(name) for name in classes]
    columns = min(8, len(images))
    lines = math.ceil(len(images) / columns)
    figure = _figure(1.5 * columns, 2.2 * lines + 0.4)
    legend = "bars: the three most probable classes, blue where true"
    figure.suptitle(f"{title}; {legend}" if title else legend.capitalize(), fontsize=12)
    figure.get_layout_engine().set(h_pad=0.02, w_pad=0.05, hspace=0)
    axes = figure.subplots(2 * lines, columns, squeeze=False, height_ratios=(3, 1) * lines)
    for axis in axes.flat:
        axis.axis("off")
    for index, image in enumerate(images):
        line, column = divmod(index, columns)
        picture, bars = axes[2 * line, column], axes[2 * line + 1, column]
        good = int(predicted[index]) == int(truth[index])
        color = BLUE if good else ORANGE
        picture.imshow(image, interpolation="nearest")
        says = classes[predicted[index]] if good else f"{classes[predicted[index]]}, is {classes[truth[index]]}"
        picture.set_title(says, color=color, fontsize=11 if len(says) < 12 else 8, weight="bold", pad=3)
        if not good:
            _frame(picture, color)
        _bars(bars, probabilities[index], classes, int(truth[index]))
    _save(figure, output)


def _frame(axis: Any, color: str) -> None:
    axis.axis("on")
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(color=color, linewidth=4)


def _bars(axis: Any, probabilities: Array, classes: Sequence[str], truth: int) -> None:
    best = np.argsort(-probabilities)[:3]
    places = np.arange(len(best))
    axis.barh(places, [1] * len(best), color="#F2F2F2", height=0.84)
    colors = [LIGHT_BLUE if number == truth else LIGHT_GREY for number in best]
    axis.barh(places, probabilities[best], color=colors, height=0.84)
    for place, number in zip(places, best, strict=True):
        axis.text(0.03, place, classes[number], ha="left", va="center", fontsize=8)
        axis.text(1.32, place, f"{100 * probabilities[number]:.0f} %", ha="right", va="center", fontsize=8)
    axis.set(xlim=(0, 1.34), ylim=(len(best) - 0.4, -0.6))


# ---- confusion ----


def confusion(matrix: Sequence[Sequence[int]], classes: Sequence[str], output: Path) -> None:
    """Row: true class, column: predicted. Colours are shares of the row, numbers are pictures."""
    counts = np.asarray(matrix)
    shares = 100 * counts / counts.sum(1, keepdims=True).clip(1)
    few, classes = len(classes) <= 30, [_plain(name) for name in classes]
    side = min(14, 3.2 + 0.5 * len(classes)) if few else 9
    figure = _figure(side + 1, side)
    axis = figure.subplots()
    shown = axis.imshow(shares, cmap="Blues", vmin=0, vmax=100, interpolation="nearest")
    figure.colorbar(shown, ax=axis, shrink=0.8, label="share of the true class, %")
    right, total = counts.trace(), counts.sum()
    axis.set_title(f"{right:,} of {total:,} right ({100 * right / max(1, total):.1f} %)", weight="bold")
    axis.set_xlabel("predicted class")
    axis.set_ylabel("true class")
    if few:
        axis.set_xticks(range(len(classes)), classes, rotation=45 if max(map(len, classes)) > 3 else 0, ha="right")
        axis.set_yticks(range(len(classes)), classes)
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = "white" if shares[row, column] > 55 else "black" if row == column else ORANGE
                axis.text(column, row, f"{count}", ha="center", va="center", color=color, fontsize=9)
    _save(figure, output)


# ---- attention ----


@dataclass(frozen=True)
class AttentionRow:
    """One picture of an attention sheet: (height, width, 3) from 0 to 1, and the map of each stage."""

    title: str
    picture: Array
    maps: Sequence[AttentionMap]


def attention_map(rows: Sequence[AttentionRow], output: Path) -> None:
    """What the query token of each picture looks at in each stage, the mean over heads, over the picture.

    Colours say how much a token counts, times the number of tokens: 1 is an equal share, below 0 it is subtracted.
    """
    stages = len(rows[0].maps)
    figure = _figure(2.4 * (stages + 1), 2.3 * len(rows) + 1.3)
    figure.suptitle("What the ringed token takes from every token: red is added, blue is subtracted\n", fontsize=12)
    axes = figure.subplots(len(rows), stages + 1, squeeze=False)
    for line, row in enumerate(rows):
        axes[line, 0].imshow(row.picture, interpolation="nearest")
        axes[line, 0].set(xticks=[], yticks=[])
        axes[line, 0].set_ylabel(_plain(row.title), fontsize=10)
    for stage in range(stages):
        _stage(figure, axes[:, stage + 1], [row.picture for row in rows], [row.maps[stage] for row in rows])
    _save(figure, output)


def _stage(figure: Any, axes: Sequence[Any], pictures: Sequence[Array], maps: Sequence[AttentionMap]) -> None:
    """One column: the maps of one stage, all with the same colours."""
    shares = [layer.weights.mean(0).numpy() * layer.weights[0].numel() for layer in maps]
    colours = _colours(np.concatenate([share.ravel() for share in shares]))
    for axis, picture, layer, share in zip(axes, pictures, maps, shares, strict=True):
        height, width = picture.shape[:2]
        place = {"extent": (0, width, height, 0), "interpolation": "nearest"}
        axis.imshow(0.3 + 0.7 * picture.mean(2), cmap="gray", vmin=0, vmax=1, **place)
        axis.imshow(share, cmap=colours.cmap, norm=colours.norm, alpha=0.75, **place)
        axis.set(xticks=[], yticks=[])
        _ring(axis, layer, (height, width))
    axes[0].set_title(f"stage {maps[0].stage}, {shares[0].shape[0]} x {shares[0].shape[1]} tokens", fontsize=10)
    bar = figure.colorbar(colours, ax=list(axes), location="bottom", extend="both", shrink=0.9, aspect=16, pad=0.03)
    bar.set_label("times an equal share", fontsize=8)
    bar.ax.tick_params(labelsize=8)


def _colours(shares: Array) -> Any:
    """Red and blue around 0 where some tokens are subtracted, otherwise reds from the least to the most."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import CenteredNorm, Normalize

    # A few tokens far off would leave the rest without colour.
    least, most = (float(number) for number in np.quantile(shares, (0.03, 0.97)))
    if least > 0:
        return ScalarMappable(Normalize(least, most), "Reds")
    return ScalarMappable(CenteredNorm(0, max(-least, most) or 1.0), "RdBu_r")


def _ring(axis: Any, layer: AttentionMap, size: tuple[int, int]) -> None:
    rows, columns = layer.weights.shape[1:]
    y, x = (layer.query[0] + 0.5) * size[0] / rows, (layer.query[1] + 0.5) * size[1] / columns
    axis.plot(x, y, "o", markersize=9, markerfacecolor="none", markeredgecolor="black", markeredgewidth=3)
    axis.plot(x, y, "o", markersize=9, markerfacecolor="none", markeredgecolor="white", markeredgewidth=1.5)
