"""What the attention is given beside tensors of tokens."""

import math
from typing import Literal, NamedTuple

from torch import Tensor

from laplacianformer.ops._pooling import Size, every_token_is_a_landmark
from laplacianformer.ops._token_mask import TokenMask

Rotation = tuple[Tensor, Tensor]
# What the columns of the kernel are divided by: the roots of these variances, (heads, m), or (B, heads, m) with one per
# item; those of the batch itself, or of the batches of all processes; None for nothing.
Variance = Tensor | Literal["batch", "synced"] | None


class Settings(NamedTuple):
    """Grids and numbers. `rotation` rotates queries and keys, `cell_rotation` the pooled keys: (cos, sin), or None."""

    size: Size  # of the grid of tokens
    cells: Size  # of the grid of landmarks
    scale: float  # lambda of the kernel
    iterations: int  # Newton-Schulz steps
    eps: float  # added to the diagonal of W
    variance_eps: float  # added to variances
    rotation: Rotation | None
    cell_rotation: Rotation | None
    prefix: int = 0  # tokens before the grid, each a landmark
    mask: TokenMask | None = None

    @property
    def landmarks(self) -> int:
        """m, where all of them are there."""
        return self.prefix + math.prod(self.cells)

    @property
    def solves(self) -> bool:
        """Whether there is anything to solve: not where every token is a landmark."""
        return not every_token_is_a_landmark(self.size, self.cells)
