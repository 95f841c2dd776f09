"""What every mixer with landmarks shares: the tokens averaged over a coarse grid.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

from typing import Any

from torch import Tensor

from laplacianformer.attention._grid import GridAttention, check_count
from laplacianformer.ops._pooling import Size, every_token_is_a_landmark, pool_heads


class LandmarkAttention(GridAttention):
    """A mixer whose landmarks are tokens averaged over grid x grid cells, never finer than the tokens.

    Args:
        dim: channels.
        num_heads: heads.
        grid: cells per side.
        **shared: rope, tied, qkv_bias, proj_drop; see `GridAttention`.
    """

    def __init__(self, dim: int, num_heads: int, *, grid: int, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        check_count(self, grid=grid)
        self.grid = grid

    def cells(self, size: Size) -> Size:
        """The grid of landmarks for a grid of tokens."""
        return min(size[0], self.grid), min(size[1], self.grid)

    def is_exact(self, size: Size) -> bool:
        """Whether every token is a landmark, so that nothing has to be solved."""
        return every_token_is_a_landmark(size, self.cells(size))

    def landmarks(self, x_bhnd: Tensor, size: Size) -> Tensor:
        """The means of x over the cells, rotated at their centres, (B, heads, m, d)."""
        return self.rotate(pool_heads(x_bhnd, size, self.cells(size)), size, self.cells(size))
