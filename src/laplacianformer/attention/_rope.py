"""Rotary position embedding on one to three axes, computed from the size of the grid: any size works.

Channel k is paired with channel k + d/2. The pairs are divided among the axes, equally many each; those left over,
and tokens before the grid, are not rotated.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer.ops._pooling import Size, cell_centres
from laplacianformer.ops._precision import accumulation_dtype
from laplacianformer.ops._tables import cached_table
from laplacianformer.ops._token_mask import TokenMask

# Wavelengths from 2 pi tokens up to nearly 2 pi theta: the extent of a feature map, or of a text.
THETA = {1: 10_000.0, 2: 100.0, 3: 100.0}


def rotate(x: Tensor, *coordinates: Tensor) -> Tensor:
    """Rotate the channels of tokens on a grid by angles that grow with their position.

    Args:
        x: (..., N, d) in row-major order, d even (divisible by 4 on two axes). With two axes, the first quarter of the
            channels, paired with the third, rotates with the row; the second, paired with the fourth, with the column.
        coordinates: those of the positions along each axis, (length,) each.

    Returns:
        (..., N, d): every pair of channels keeps its length.
    """
    dtype = accumulation_dtype(x.dtype)
    return ops.rotate(x, *rotation([axis.to(dtype) for axis in coordinates], x.shape[-1]))


def cell_rotation(
    x: Tensor, size: Size, cells: Size, prefix: int = 0, mask: TokenMask | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines that rotate x by the centres of the cells of a grid of tokens (cells = size: the tokens).

    (N, d / 2) each, or (B, N, d / 2) with a mask, under which each item has cells of its own.
    """
    dtype = accumulation_dtype(x.dtype)
    if mask is None:
        return _cell_rotation(tuple(size), tuple(cells), x.shape[-1], prefix, x.device, dtype)
    return with_prefix(*rotation([axis.to(dtype) for axis in mask.centres()], x.shape[-1]), prefix)


@cached_table
def _cell_rotation(
    size: Size, cells: Size, channels: int, prefix: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    centres = [cell_centres(length, count, device).to(dtype) for length, count in zip(size, cells, strict=True)]
    return with_prefix(*rotation(centres, channels), prefix)


def rotation(coordinates: Sequence[Tensor], channels: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, (N, channels / 2) each, for coordinates (length,) along each axis; or with a batch before."""
    axes, pairs = len(coordinates), channels // 2
    each = pairs // axes
    steps = torch.arange(each, device=coordinates[0].device, dtype=coordinates[0].dtype)
    frequencies = THETA[axes] ** (-steps / each)
    angles = [axis[..., None] * frequencies for axis in coordinates]
    spare = pairs - axes * each
    cos = _on_grid([angle.cos() for angle in angles], spare, 1.0)
    sin = _on_grid([angle.sin() for angle in angles], spare, 0.0)
    return cos, sin


def _on_grid(along: Sequence[Tensor], spare: int, fill: float) -> Tensor:
    """Numbers (..., length, c) along each axis -> (..., N, axes * c + spare), the last of them `fill`."""
    if len(along) == 1 and not spare:
        return along[0]
    axes, leading = len(along), along[0].shape[:-2]
    size = [part.shape[-2] for part in along]
    parts = []
    for axis, part in enumerate(along):
        for other in range(axes):
            if other != axis:
                part = part.unsqueeze(len(leading) + other)
        parts.append(part.expand(*leading, *size, -1))
    if spare:
        parts.append(parts[0].new_full((), fill).expand(*leading, *size, spare))
    return torch.cat(parts, dim=-1).flatten(len(leading), -2)


def with_prefix(cos: Tensor, sin: Tensor, prefix: int) -> tuple[Tensor, Tensor]:
    """The same with rows before that rotate nothing."""
    if not prefix:
        return cos, sin
    shape = (*cos.shape[:-2], prefix, cos.shape[-1])
    return torch.cat([cos.new_ones(shape), cos], dim=-2), torch.cat([sin.new_zeros(shape), sin], dim=-2)
