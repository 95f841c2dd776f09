"""What was predicted: a sheet of pictures with their most probable classes, and which class is taken for which."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from laplacianformer.plots.figure import BLUE, LIGHT_BLUE, LIGHT_GREY, ORANGE, Array, new_figure, plain, save


def draw_predictions(
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
    classes = [plain(name) for name in classes]
    columns = min(8, len(images))
    lines = math.ceil(len(images) / columns)
    figure = new_figure(1.5 * columns, 2.2 * lines + 0.4)
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
    save(figure, output)


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


def draw_confusion(matrix: Sequence[Sequence[int]], classes: Sequence[str], output: Path) -> None:
    """Row: true class, column: predicted. Colours are shares of the row, numbers are pictures."""
    counts = np.asarray(matrix)
    shares = 100 * counts / counts.sum(1, keepdims=True).clip(1)
    few, classes = len(classes) <= 30, [plain(name) for name in classes]
    side = min(14, 3.2 + 0.5 * len(classes)) if few else 9
    figure = new_figure(side + 1, side)
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
    save(figure, output)
