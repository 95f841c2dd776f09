"""Landmarks: tokens on a grid of one to three axes averaged over its cells, as F.adaptive_avg_pool2d would.

Averaging is one small matrix product per axis, so it is deterministic on every device, takes any size in one
compiled or exported graph, and reads the keys in place, as slices of the projection.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width, c channels (h * d).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from laplacianformer.ops._tables import cached_table
from laplacianformer.ops._tracing import has_static_size

# Lengths of the axes of a grid: (N,), (H, W) or (T, H, W). Tokens are in row-major order.
Size = tuple[int, ...]


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


def along_axes(x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Multiply each axis of a grid by a matrix: (B, *size, C) -> (B, *cells, C), last axis first.

    Each matrix is (cells, length), or (B, cells, length) with one per item of the batch.
    """
    for axis in reversed(range(len(matrices))):
        matrix, behind = matrices[axis], x.shape[2 + axis :]
        if not has_static_size((*matrix.shape, *x.shape)):
            x = _for_every_size(matrix, x, axis)
            continue
        if matrix.ndim == 3:  # one per item: to be broadcast over the axes before this one
            matrix = matrix.unflatten(0, (-1, *(1,) * axis))
        x = (matrix @ x.flatten(2 + axis)).unflatten(-1, behind)
    return x


def _for_every_size(matrix: Tensor, x: Tensor, axis: int) -> Tensor:
    """The same product without `matmul`, whose choice of a form an exporter would have to prove for every size."""
    if matrix.ndim == 3:
        first = x.movedim(1 + axis, 1)
        product = torch.bmm(matrix, first.flatten(2)).reshape(x.shape[0], -1, *first.shape[2:])
        return product.movedim(1, 1 + axis)
    before, behind = x.shape[: 1 + axis], x.shape[2 + axis :]
    flat = x.flatten(2 + axis).flatten(0, axis)
    return torch.bmm(matrix.expand(flat.shape[0], -1, -1), flat).reshape(*before, -1, *behind)


def pool(x_bnc: Tensor, size: Size, cells: Size) -> Tensor:
    """(B, N, C) on a grid -> (B, m, C): the mean of each cell."""
    device, dtype = x_bnc.device, x_bnc.dtype
    matrices = [averaging_matrix(*lengths, device, dtype) for lengths in zip(size, cells, strict=True)]
    return along_axes(x_bnc.unflatten(1, size), matrices).flatten(1, len(size))


def pool_heads(x_bhnd: Tensor, size: Size, cells: Size, prefix: int = 0) -> Tensor:
    """The same for tokens by head, (B, heads, N, d) -> (B, heads, m, d). Tokens before the grid stay as they are."""
    heads, on_grid = x_bhnd.shape[1], x_bhnd[:, :, prefix:]
    pooled = pool(on_grid.transpose(1, 2).flatten(2), size, cells).unflatten(2, (heads, -1)).transpose(1, 2)
    return torch.cat([x_bhnd[:, :, :prefix], pooled], dim=2) if prefix else pooled
