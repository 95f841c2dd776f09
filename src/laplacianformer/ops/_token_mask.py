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


@dataclass(frozen=True)
class TokenMask:
    """A mask and what follows from it. Tokens before the grid, `prefix` of them, are landmarks where they count."""

    mask_bn: Tensor  # True where a token counts
    size: Size
    prefix: int
    extents: tuple[Tensor, ...]  # per axis, (B,): tokens of the box that holds what counts
    cells: tuple[Tensor, ...]  # per axis, (B,): cells of the item, at least 1
    membership: tuple[Tensor, ...]  # per axis, (B, r, l) bool: whether a position lies in a cell
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
        counts = self._sums(self.mask_bn[:, self.prefix :, None].to(x_bhnd.dtype).unflatten(1, self.size))
        means = (self._sums(on_grid) / counts.clamp(min=1)).unflatten(2, (x_bhnd.shape[1], -1)).transpose(1, 2)
        return torch.cat([filled[:, :, : self.prefix], means], dim=2) if self.prefix else means

    def centres(self) -> list[Tensor]:
        """Per axis, (B, r): the middle of each cell, as `cell_centres` has it."""
        found = []
        for extent, cells, membership in zip(self.extents, self.cells, self.membership, strict=True):
            extent, cells = extent[:, None], cells[:, None]
            index = torch.arange(membership.shape[1], device=extent.device)
            first, end = index * extent // cells, ((index + 1) * extent + cells - 1) // cells
            found.append((first + end - 1).float() / 2)
        return found

    def _sums(self, x: Tensor) -> Tensor:
        return along_axes(x, [inside.to(x.dtype) for inside in self.membership]).flatten(1, len(self.size))


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
    """What follows from a mask for tokens on a grid and at most `cells` cells."""
    on_grid = mask_bn[:, prefix:].unflatten(1, size)
    extents = grid_extents(mask_bn, size, prefix)
    own_cells = [extent.clamp(min=1, max=most) for extent, most in zip(extents, cells, strict=True)]
    membership = [cell_membership(*lengths) for lengths in zip(extents, own_cells, size, cells, strict=True)]
    sums = along_axes(on_grid[..., None].float(), [inside.float() for inside in membership])
    landmarks_bm = torch.cat([mask_bn[:, :prefix], sums.flatten(1) > 0], dim=1)
    return TokenMask(mask_bn, size, prefix, tuple(extents), tuple(own_cells), tuple(membership), landmarks_bm)


def cell_membership(length_b: Tensor, cells_b: Tensor, most_length: int, most_cells: int) -> Tensor:
    """(B, most_cells, most_length), True where a position lies in a cell, for a length and cells of each item."""
    length, cells = length_b[:, None, None], cells_b[:, None, None]
    position = torch.arange(most_length, device=length_b.device)
    cell = torch.arange(most_cells, device=length_b.device)[:, None]
    inside = ((position + 1) * cells > cell * length) & (position * cells < (cell + 1) * length)
    return inside & (cell < cells) & (position < length)


def resize(maps: Tensor, membership: Sequence[Tensor]) -> Tensor:
    """Maps (heads, *lengths) averaged over the cells of each item: (B, heads, *cells), zeros where there is no cell."""
    weights = [inside.to(maps.dtype) for inside in membership]
    batch = weights[0].shape[0]
    matrices = [weight / weight.sum(-1, keepdim=True).clamp(min=1) for weight in weights]
    repeated = maps[None].expand(batch, *maps.shape).movedim(1, -1)
    return along_axes(repeated, matrices).movedim(-1, 1)
