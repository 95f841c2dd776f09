"""What every mixer with landmarks shares: the tokens averaged over a coarse grid.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from laplacianformer.attention._grid import GridAttention, check_count
from laplacianformer.attention._rope import cell_rotation
from laplacianformer.ops._pooling import Size, every_token_is_a_landmark, pool_heads
from laplacianformer.ops._token_mask import TokenMask, lay_out
from laplacianformer.ops._tracing import smaller
from laplacianformer.ops.laplacian_attention.reference import rotate_landmarks

# Cells per axis, or the same for all; "auto": by the number of axes.
Grid = int | Sequence[int] | Literal["auto"]
# 64, 49 and 64 landmarks.
_CELLS = {1: 64, 2: 7, 3: 4}


class LandmarkAttention(GridAttention):
    """A mixer whose landmarks are tokens averaged over the cells of a grid, never finer than the tokens.

    Args:
        dim: channels.
        num_heads: heads.
        grid: cells per axis: one number for all axes, or one for each; "auto": 64 for sequences, 7 x 7 for images,
            4 x 4 x 4 for volumes.
        **shared: axes, prefix, rope, tied, qkv_bias, proj_drop; see `GridAttention`.
    """

    def __init__(self, dim: int, num_heads: int, *, grid: Grid = "auto", **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        self.grid = self.checked_grid(grid)

    def checked_grid(self, grid: Grid) -> Size:
        """Cells along each axis."""
        if isinstance(grid, str) and grid == "auto":
            grid = _CELLS[self.axes]
        cells: tuple[Any, ...] = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,) * self.axes
        if isinstance(grid, str) or len(cells) != self.axes:
            raise ValueError(
                f"{type(self).__name__}: grid must be a number, or one for each of {self.axes} axes, got {grid!r}"
            )
        for count in cells:
            check_count(self, grid=count)
        return cells

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "grid": self.grid}

    def cells(self, size: Size) -> Size:
        """The grid of landmarks for a grid of tokens."""
        return tuple(smaller(length, most) for length, most in zip(size, self.grid, strict=True))

    def is_exact(self, size: Size) -> bool:
        """Whether every token is a landmark, so that nothing has to be solved."""
        return every_token_is_a_landmark(size, self.cells(size))

    def lay_out(self, mask: Tensor | None, size: Size) -> TokenMask | None:
        """What follows from a mask for the landmarks of each item."""
        return None if mask is None else lay_out(mask, size, self.cells(size), self.prefix)

    def landmarks(self, x_bhnd: Tensor, size: Size, mask: TokenMask | None = None) -> Tensor:
        """The means of x over the cells, rotated at their centres, (B, heads, m, d); leading tokens come first."""
        return self.at_centres(self.pooled(x_bhnd, size, mask), size, mask)

    def pooled(self, x_bhnd: Tensor, size: Size, mask: TokenMask | None) -> Tensor:
        """The means of x over the cells, (B, heads, m, d)."""
        return pool_heads(x_bhnd, size, self.cells(size), self.prefix) if mask is None else mask.pool(x_bhnd)

    def at_centres(self, x_bhmd: Tensor, size: Size, mask: TokenMask | None) -> Tensor:
        """Landmarks rotated at the centres of their cells, if this layer has rotary positions."""
        if not self.rope:
            return x_bhmd
        return rotate_landmarks(x_bhmd, cell_rotation(x_bhmd, size, self.cells(size), self.prefix, mask))
