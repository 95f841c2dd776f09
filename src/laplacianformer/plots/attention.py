"""What a query token looks at, over the picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from laplacianformer.inspect.attention_maps import AttentionMap
from laplacianformer.plots.figure import Array, new_figure, plain, save


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
    figure = new_figure(2.4 * (stages + 1), 2.3 * len(rows) + 1.3)
    figure.suptitle("What the ringed token takes from every token: red is added, blue is subtracted\n", fontsize=12)
    axes = figure.subplots(len(rows), stages + 1, squeeze=False)
    for line, row in enumerate(rows):
        axes[line, 0].imshow(row.picture, interpolation="nearest")
        axes[line, 0].set(xticks=[], yticks=[])
        axes[line, 0].set_ylabel(plain(row.title), fontsize=10)
    for stage in range(stages):
        _stage(figure, axes[:, stage + 1], [row.picture for row in rows], [row.maps[stage] for row in rows])
    save(figure, output)


def _stage(figure: Any, axes: Sequence[Any], pictures: Sequence[Array], maps: Sequence[AttentionMap]) -> None:
    """One column: the maps of one stage, all with the same colours."""
    shares = [layer.weights.mean(0).numpy() * layer.weights[0].numel() for layer in maps]
    chosen = colours(np.concatenate([share.ravel() for share in shares]))
    for axis, picture, layer, share in zip(axes, pictures, maps, shares, strict=True):
        height, width = picture.shape[:2]
        place = {"extent": (0, width, height, 0), "interpolation": "nearest"}
        axis.imshow(0.3 + 0.7 * picture.mean(2), cmap="gray", vmin=0, vmax=1, **place)
        axis.imshow(share, cmap=chosen.cmap, norm=chosen.norm, alpha=0.75, **place)
        axis.set(xticks=[], yticks=[])
        _ring(axis, layer, (height, width))
    axes[0].set_title(f"stage {maps[0].stage}, {shares[0].shape[0]} x {shares[0].shape[1]} tokens", fontsize=10)
    bar = figure.colorbar(chosen, ax=list(axes), location="bottom", extend="both", shrink=0.9, aspect=16, pad=0.03)
    bar.set_label("times an equal share", fontsize=8)
    bar.ax.tick_params(labelsize=8)


def colours(shares: Array) -> Any:
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
