"""What one token attends to, drawn over the image."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from laplacianformer.inspect._attention_matrix import TokenAttention
from laplacianformer.plots._figure import Array, escaped, new_figure, save


@dataclass(frozen=True)
class AttentionFigureRow:
    """One row of the figure: an image (height, width, 3) from 0 to 1, and what one token attends to in each stage."""

    title: str
    image: Array
    stages: Sequence[TokenAttention]


def draw_attention(rows: Sequence[AttentionFigureRow], output: Path) -> None:
    """One row per image and one column per stage: the weights of all tokens, mean over heads, over the image.

    Colours show the weight of a token times the number of tokens: 1 is uniform attention, below 0 it is subtracted.
    """
    stages = len(rows[0].stages)
    figure = new_figure(2.4 * (stages + 1), 2.3 * len(rows) + 1.3)
    figure.suptitle("What the ringed token takes from every token: red is added, blue is subtracted\n", fontsize=12)
    axes = figure.subplots(len(rows), stages + 1, squeeze=False)
    for line, row in enumerate(rows):
        axes[line, 0].imshow(row.image, interpolation="nearest")
        axes[line, 0].set(xticks=[], yticks=[])
        axes[line, 0].set_ylabel(escaped(row.title), fontsize=10)
    for stage in range(stages):
        _draw_stage(figure, axes[:, stage + 1], [row.image for row in rows], [row.stages[stage] for row in rows])
    save(figure, output)


def _draw_stage(figure: Any, axes: Sequence[Any], images: Sequence[Array], found: Sequence[TokenAttention]) -> None:
    """One column: one stage for all images, with the same colours."""
    relative = [layer.weights.mean(0).numpy() * layer.weights[0].numel() for layer in found]
    colours = attention_colours(np.concatenate([weights.ravel() for weights in relative]))
    for axis, image, layer, weights in zip(axes, images, found, relative, strict=True):
        height, width = image.shape[:2]
        options = {"extent": (0, width, height, 0), "interpolation": "nearest"}
        axis.imshow(0.3 + 0.7 * image.mean(2), cmap="gray", vmin=0, vmax=1, **options)
        axis.imshow(weights, cmap=colours.cmap, norm=colours.norm, alpha=0.75, **options)
        axis.set(xticks=[], yticks=[])
        _draw_ring(axis, layer, (height, width))
    rows, columns = relative[0].shape
    axes[0].set_title(f"stage {found[0].stage}, {rows} x {columns} tokens", fontsize=10)
    bar = figure.colorbar(colours, ax=list(axes), location="bottom", extend="both", shrink=0.9, aspect=16, pad=0.03)
    bar.set_label("relative to uniform attention", fontsize=8)
    bar.ax.tick_params(labelsize=8)


def attention_colours(weights: Array) -> Any:
    """Colours for attention weights, as matplotlib's ScalarMappable.

    Red and blue around 0 where some tokens are subtracted, otherwise reds from the smallest to the largest weight.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import CenteredNorm, Normalize

    # A few outliers would leave the other tokens without colour.
    low, high = (float(number) for number in np.quantile(weights, (0.03, 0.97)))
    if low > 0:
        return ScalarMappable(Normalize(low, high), "Reds")
    return ScalarMappable(CenteredNorm(0, max(-low, high) or 1.0), "RdBu_r")


def _draw_ring(axis: Any, layer: TokenAttention, size: tuple[int, int]) -> None:
    """Around the query token."""
    rows, columns = layer.weights.shape[1:]
    y, x = (layer.query[0] + 0.5) * size[0] / rows, (layer.query[1] + 0.5) * size[1] / columns
    axis.plot(x, y, "o", markersize=9, markerfacecolor="none", markeredgecolor="black", markeredgewidth=3)
    axis.plot(x, y, "o", markersize=9, markerfacecolor="none", markeredgecolor="white", markeredgewidth=1.5)
