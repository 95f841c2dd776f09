"""Landmarks: the token grid averaged over rectangular cells, as F.adaptive_avg_pool2d would.

Averaging is two small matrix products, so it is deterministic on every device, takes any size in one
compiled or exported graph, and reads the keys where they are, as slices of the projection.
"""

import torch
from torch import Tensor

from laplacianformer.attention.cached_tables import remembered

Size = tuple[int, int]


def known(size: Size) -> bool:
    """Whether code may branch on this size: not while exporting a graph that is to serve every size."""
    return not (torch.compiler.is_exporting() and any(isinstance(length, torch.SymInt) for length in size))


def cell_centres(length: int, cells: int, device: torch.device) -> Tensor:
    """The mean coordinate of the tokens of each cell, (cells,)."""
    index = torch.arange(cells, device=device)
    first, end = index * length // cells, ((index + 1) * length + cells - 1) // cells
    return (first + end - 1).float() / 2


@remembered
def averaging_matrix(length: int, cells: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(cells, length), rows sum to one; cells overlap by one token where lengths don't divide."""
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
