"""Which tokens count: what a mask does to the cells of the landmarks, and to the numbers of tokens and landmarks.

The cells of an item are laid over the extent of its own tokens, the smallest box from the origin that holds them, so
that nothing depends on the padding behind it. Tokens that don't count are left out of the means, and a cell without a
token is no landmark. An item whose extent has fewer tokens along an axis than there may be cells has one cell per token
along that axis; its cells are the first of those that the whole batch has.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width, l length of an axis, r cells along an axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laplacianformer.ops._pooling import Size, along_axes

Bounds = tuple[Tensor, Tensor]  # the first position of each cell of each item, and the one after its last: (B, r) each


@dataclass(frozen=True)
class TokenMask:
    """A mask and what follows from it. Tokens before the grid, `prefix` of them, are landmarks where they count."""

    mask_bn: Tensor  # True where a token counts
    size: Size
    prefix: int
    extents: tuple[Tensor, ...]  # per axis, (B,): tokens of the box that holds what counts
    cells: tuple[Tensor, ...]  # per axis, (B,): cells of the item, at least 1
    bounds: tuple[Bounds, ...]  # per axis
    landmarks_bm: Tensor  # True where a landmark is there

    @property
    def absent_tokens(self) -> Tensor:
        """(B, 1, N, 1): where nothing counts, to fill tokens by head."""
        return ~self.mask_bn[:, None, :, None]

    @property
    def absent_landmarks(self) -> Tensor:
        """(B, 1, m, 1): the same for landmarks."""
        return ~self.landmarks_bm[:, None, :, None]

    @property
    def exact_b(self) -> Tensor:
        """Whether every token of the item is a landmark: each cell has one token."""
        equal = [extent <= cells for extent, cells in zip(self.extents, self.cells, strict=True)]
        return torch.stack(equal).all(0)

    def counts(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """N and m of each item, (B, 1, 1, 1) each and at least 1."""
        tokens, landmarks = (x.sum(1).clamp(min=1).to(dtype) for x in (self.mask_bn, self.landmarks_bm))
        return tokens[:, None, None, None], landmarks[:, None, None, None]

    def pool(self, x_bhnd: Tensor) -> Tensor:
        """The means over the cells of each item, (B, heads, m, d); zeros where there is no landmark."""
        filled = x_bhnd.masked_fill(self.absent_tokens, 0)
        on_grid = filled[:, :, self.prefix :].transpose(1, 2).flatten(2).unflatten(1, self.size)
        counted = self.mask_bn[:, self.prefix :, None].to(x_bhnd.dtype).unflatten(1, self.size)
        matrices = [_membership(*cells, x_bhnd.dtype) for cells in zip(self.bounds, self.size, strict=True)]
        means = along_axes(on_grid, matrices) / along_axes(counted, matrices).clamp(min=1)
        by_head = means.flatten(1, len(self.size)).unflatten(2, (x_bhnd.shape[1], -1)).transpose(1, 2)
        return torch.cat([filled[:, :, : self.prefix], by_head], dim=2) if self.prefix else by_head

    def centres(self) -> list[Tensor]:
        """Per axis, (B, r): the middle of each cell, as `cell_centres` has it."""
        return [(first + end - 1).float() / 2 for first, end in self.bounds]


def grid_extents(mask_bn: Tensor, size: Size, prefix: int = 0) -> list[Tensor]:
    """Per axis, (B,): the length of the smallest box from the origin that holds the tokens that count."""
    on_grid = mask_bn[:, prefix:].unflatten(1, size)
    found = []
    for axis, length in enumerate(size, 1):
        others = [other for other in range(1, len(size) + 1) if other != axis]
        occupied = on_grid.any(others) if others else on_grid
        found.append((occupied * torch.arange(1, length + 1, device=mask_bn.device)).amax(1))
    return found


def grid_coordinates(size: Size, device: torch.device) -> list[Tensor]:
    """Per axis, (N,): where each token of a grid stands."""
    along = torch.meshgrid(*(torch.arange(length, device=device) for length in size), indexing="ij")
    return [coordinate.flatten() for coordinate in along]


def lay_out(mask_bn: Tensor, size: Size, cells: Size, prefix: int = 0) -> TokenMask:
    """What follows from a mask for tokens on a grid and at most `cells` cells. O(N)."""
    extents = grid_extents(mask_bn, size, prefix)
    own_cells = [extent.clamp(min=1, max=most) for extent, most in zip(extents, cells, strict=True)]
    bounds = [cell_bounds(*lengths) for lengths in zip(extents, own_cells, cells, strict=True)]
    on_grid = _box_sums(mask_bn[:, prefix:].unflatten(1, size), bounds).flatten(1) > 0
    landmarks_bm = torch.cat([mask_bn[:, :prefix], on_grid], dim=1)
    return TokenMask(mask_bn, size, prefix, tuple(extents), tuple(own_cells), tuple(bounds), landmarks_bm)


def cell_bounds(length_b: Tensor, cells_b: Tensor, most_cells: int) -> Bounds:
    """Of the cells of items with these lengths and numbers of cells; cells that an item does not have are empty."""
    length, cells = length_b[:, None], cells_b[:, None]
    cell = torch.arange(most_cells, device=length_b.device)
    first, end = cell * length // cells, ((cell + 1) * length + cells - 1) // cells
    return first, torch.where(cell < cells, end, first)


def resize(maps: Tensor, bounds: Sequence[Bounds]) -> Tensor:
    """Maps (heads, *lengths) averaged over the cells of each item: (B, heads, *cells), zeros where there is no cell."""
    lengths = maps.shape[1:]
    weights = [_membership(*cells, maps.dtype) for cells in zip(bounds, lengths, strict=True)]
    matrices = [weight / weight.sum(-1, keepdim=True).clamp(min=1) for weight in weights]
    repeated = maps[None].expand(weights[0].shape[0], *maps.shape).movedim(1, -1)
    return along_axes(repeated, matrices).movedim(-1, 1)


def _membership(bounds: Bounds, length: int, dtype: torch.dtype) -> Tensor:
    """(B, r, length), one where a position lies in a cell, else zero.

    Compared as a matrix: of three axes an exporter would have to prove that the first stride is the largest.
    """
    first, end = (bound.flatten()[:, None] for bound in bounds)
    position = torch.arange(length, device=first.device)
    inside = (position >= first) & (position < end)
    return inside.to(dtype).unflatten(0, bounds[0].shape)


def _box_sums(on_grid: Tensor, bounds: Sequence[Bounds]) -> Tensor:
    """How many are True in each cell, (B, *cells): differences of running sums along each axis."""
    counts = on_grid.long()
    for axis, (first, end) in enumerate(bounds, 1):
        running = torch.cat([torch.zeros_like(counts.narrow(axis, 0, 1)), counts.cumsum(axis)], dim=axis)
        shape = (*running.shape[:axis], first.shape[1], *running.shape[axis + 1 :])
        spread = (slice(None), *(None,) * (axis - 1), slice(None), *(None,) * (counts.ndim - 1 - axis))
        upper, lower = (running.gather(axis, at[spread].expand(shape)) for at in (end, first))
        counts = upper - lower
    return counts
