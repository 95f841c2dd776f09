"""Figures of predictions: images with their most probable classes, and the confusion matrix."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from laplacianformer.plots._figure import BLUE, LIGHT_BLUE, LIGHT_GREY, ORANGE, Array, escaped, new_figure, save


def draw_predictions(
    images: Sequence[Array],
    predicted: Sequence[int],
    probabilities: Array,
    truth: Sequence[int],
    classes: Sequence[str],
    output: Path,
    title: str = "",
) -> None:
    """Each image with its most probable classes as bars; wrong predictions are marked.

    Args:
        images: each (height, width, 3), from 0 to 1.
        predicted, truth: index of a class per image.
        probabilities: (images, classes).
    """
    classes = [escaped(name) for name in classes]
    columns = min(8, len(images))
    lines = math.ceil(len(images) / columns)
    figure = new_figure(1.5 * columns, 2.2 * lines + 0.4)
    legend = "bars: the three most probable classes, the true one in blue"
    figure.suptitle(f"{title}; {legend}" if title else legend.capitalize(), fontsize=12)
    figure.get_layout_engine().set(h_pad=0.02, w_pad=0.05, hspace=0)
    axes = figure.subplots(2 * lines, columns, squeeze=False, height_ratios=(3, 1) * lines)
    for axis in axes.flat:
        axis.axis("off")
    for index, image in enumerate(images):
        line, column = divmod(index, columns)
        upper, lower = axes[2 * line, column], axes[2 * line + 1, column]
        correct = int(predicted[index]) == int(truth[index])
        color = BLUE if correct else ORANGE
        upper.imshow(image, interpolation="nearest")
        label = classes[predicted[index]] if correct else f"{classes[predicted[index]]}, is {classes[truth[index]]}"
        upper.set_title(label, color=color, fontsize=11 if len(label) < 12 else 8, weight="bold", pad=3)
        if not correct:
            _draw_frame(upper, color)
        _draw_bars(lower, probabilities[index], classes, int(truth[index]))
    save(figure, output)


def _draw_frame(axis: Any, color: str) -> None:
    axis.axis("on")
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(color=color, linewidth=4)


def _draw_bars(axis: Any, probabilities: Array, classes: Sequence[str], truth: int) -> None:
    best = np.argsort(-probabilities)[:3]
    heights = np.arange(len(best))
    axis.barh(heights, [1] * len(best), color="#F2F2F2", height=0.84)
    colors = [LIGHT_BLUE if index == truth else LIGHT_GREY for index in best]
    axis.barh(heights, probabilities[best], color=colors, height=0.84)
    for y, index in zip(heights, best, strict=True):
        axis.text(0.03, y, classes[index], ha="left", va="center", fontsize=8)
        axis.text(1.32, y, f"{100 * probabilities[index]:.0f} %", ha="right", va="center", fontsize=8)
    axis.set(xlim=(0, 1.34), ylim=(len(best) - 0.4, -0.6))


def draw_confusion(matrix: Sequence[Sequence[int]], classes: Sequence[str], output: Path) -> None:
    """Row: true class, column: predicted class. Colours show the percentage of the row, numbers count images."""
    counts = np.asarray(matrix)
    percentages = 100 * counts / counts.sum(1, keepdims=True).clip(1)
    few, classes = len(classes) <= 30, [escaped(name) for name in classes]
    side = min(14, 3.2 + 0.5 * len(classes)) if few else 9
    figure = new_figure(side + 1, side)
    axis = figure.subplots()
    mesh = axis.imshow(percentages, cmap="Blues", vmin=0, vmax=100, interpolation="nearest")
    figure.colorbar(mesh, ax=axis, shrink=0.8, label="% of the true class")
    correct, total = counts.trace(), counts.sum()
    axis.set_title(f"{correct:,} of {total:,} correct ({100 * correct / max(1, total):.1f} %)", weight="bold")
    axis.set_xlabel("predicted class")
    axis.set_ylabel("true class")
    if few:
        axis.set_xticks(range(len(classes)), classes, rotation=45 if max(map(len, classes)) > 3 else 0, ha="right")
        axis.set_yticks(range(len(classes)), classes)
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = "white" if percentages[row, column] > 55 else "black" if row == column else ORANGE
                axis.text(column, row, f"{count}", ha="center", va="center", color=color, fontsize=9)
    save(figure, output)
