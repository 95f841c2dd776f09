"""Rotary position embedding on two axes, computed from the positions on each call: any grid size works."""

import torch
from torch import Tensor

from laplacianformer.ops.precision import accumulation_dtype

# Wavelengths from 2 pi tokens to 2 pi * 100 tokens: the extent of a feature map, not of a text.
THETA = 100.0


def rotate(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Rotate the channels of tokens on a grid by angles that grow with their place.

    Args:
        x: (..., H * W, d) in row-major order, d divisible by 4. The first quarter of the channels, paired
            with the third, turns with the row; the second, paired with the fourth, with the column.
        rows: (H,) coordinates of the rows.
        columns: (W,) coordinates of the columns.

    Returns:
        (..., H * W, d): every pair of channels keeps its length.
    """
    quarter = x.shape[-1] // 4
    dtype = accumulation_dtype(x.dtype)
    rows, columns = rows.to(dtype), columns.to(dtype)
    frequencies = THETA ** (-torch.arange(quarter, device=x.device, dtype=dtype) / quarter)
    height, width = rows.shape[0], columns.shape[0]
    angles = torch.cat(
        [
            (rows[:, None, None] * frequencies).expand(height, width, quarter),
            (columns[None, :, None] * frequencies).expand(height, width, quarter),
        ],
        dim=-1,
    ).flatten(0, 1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
