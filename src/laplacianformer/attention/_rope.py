"""Rotary position embedding on two axes, computed from the size of the grid: any size works."""

import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer.ops._pooling import Size, cell_centres
from laplacianformer.ops._precision import accumulation_dtype
from laplacianformer.ops._tables import cached_table

# Wavelengths from 2 pi tokens up to nearly 2 pi * 100: the extent of a feature map, not of a text.
THETA = 100.0


def rotate(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Rotate the channels of tokens on a grid by angles that grow with their position.

    Args:
        x: (..., H * W, d) in row-major order, d divisible by 4. The first quarter of the channels, paired
            with the third, rotates with the row; the second, paired with the fourth, with the column.
        rows: (H,) coordinates of the rows.
        columns: (W,) coordinates of the columns.

    Returns:
        (..., H * W, d): every pair of channels keeps its length.
    """
    dtype = accumulation_dtype(x.dtype)
    return ops.rotate(x, *rotation(rows.to(dtype), columns.to(dtype), x.shape[-1]))


def cell_rotation(x: Tensor, size: Size, cells: Size) -> tuple[Tensor, Tensor]:
    """Cosines and sines that rotate x by the centres of the cells of a grid of tokens (cells = size: the tokens)."""
    return _cell_rotation(*size, *cells, x.shape[-1], x.device, accumulation_dtype(x.dtype))


@cached_table
def _cell_rotation(
    height: int, width: int, rows: int, columns: int, channels: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    by_row, by_column = cell_centres(height, rows, device), cell_centres(width, columns, device)
    return rotation(by_row.to(dtype), by_column.to(dtype), channels)


def rotation(rows: Tensor, columns: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, (H * W, channels / 2) each."""
    quarter = channels // 4
    frequencies = THETA ** (-torch.arange(quarter, device=rows.device, dtype=rows.dtype) / quarter)
    by_row, by_column = rows[:, None, None] * frequencies, columns[None, :, None] * frequencies
    return _on_grid(by_row.cos(), by_column.cos()), _on_grid(by_row.sin(), by_column.sin())


def _on_grid(of_rows: Tensor, of_columns: Tensor) -> Tensor:
    """(H, 1, c) and (1, W, c) -> (H * W, 2 c)."""
    height, width = of_rows.shape[0], of_columns.shape[1]
    parts = of_rows.expand(-1, width, -1), of_columns.expand(height, -1, -1)
    return torch.cat(parts, dim=-1).flatten(0, 1)
