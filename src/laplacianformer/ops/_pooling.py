"""Landmarks: tokens on a grid averaged over rectangular cells, as F.adaptive_avg_pool2d would.

Averaging is two small matrix products, so it is deterministic on every device, takes any size in one
compiled or exported graph, and reads the keys in place, as slices of the projection.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width, c channels (h * d).
"""

import torch
from torch import Tensor

from laplacianformer.ops._tables import cached_table
from laplacianformer.ops._tracing import has_static_size

Size = tuple[int, int]


def every_token_is_a_landmark(size: Size, cells: Size) -> bool:
    """Whether cells of one token each make the layer exact, with nothing to solve.

    False while one graph is exported for every size: the graph itself then decides.
    """
    return has_static_size(size) and tuple(cells) == tuple(size)


def cell_centres(length: int, cells: int, device: torch.device) -> Tensor:
    """The mean coordinate of the tokens of each cell, (cells,)."""
    index = torch.arange(cells, device=device)
    first, end = index * length // cells, ((index + 1) * length + cells - 1) // cells
    return (first + end - 1).float() / 2


@cached_table
def averaging_matrix(length: int, cells: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(cells, length), rows sum to one; cells overlap by one token where the length is no multiple of their number."""
    position, cell = torch.arange(length, device=device), torch.arange(cells, device=device)[:, None]
    # Cell i reaches from i length / cells to (i + 1) length / cells; without divisions, which exporters spell out.
    inside = ((position + 1) * cells > cell * length) & (position * cells < (cell + 1) * length)
    weights = inside.to(dtype)
    return weights / weights.sum(-1, keepdim=True)


def pool(x_bnc: Tensor, size: Size, cells: Size) -> Tensor:
    """(B, H * W, C) -> (B, cells_h * cells_w, C): the mean of each cell."""
    (height, width), (rows, columns) = size, cells
    device, dtype = x_bnc.device, x_bnc.dtype
    along_width = averaging_matrix(width, columns, device, dtype) @ x_bnc.unflatten(1, (height, width))
    along_height = averaging_matrix(height, rows, device, dtype) @ along_width.flatten(2)
    return along_height.unflatten(2, (columns, -1)).flatten(1, 2)


def pool_heads(x_bhnd: Tensor, size: Size, cells: Size) -> Tensor:
    """The same for tokens by head: (B, heads, H * W, d) -> (B, heads, cells_h * cells_w, d)."""
    heads = x_bhnd.shape[1]
    return pool(x_bhnd.transpose(1, 2).flatten(2), size, cells).unflatten(2, (heads, -1)).transpose(1, 2)
