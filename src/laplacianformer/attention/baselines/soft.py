"""SOFT: Lu, Yao, Zhang, Zhu, Xu, Gao, Xu, Xiang and Zhang, "SOFT: Softmax-free Transformer with Linear Complexity",
2021.

    S = k(Q, Km) pinv(k(Km, Km)) k(Km, K)        Q = K        out = S V

Km are the keys averaged over a grid. One projection for queries and keys makes S symmetric and positive semi-definite.
The pseudo-inverse is Newton's iteration without a ridge, from the transpose, with the gradient of the pseudo-inverse
itself, -X' G X', not that of the steps. Rows are not normalised. O(N m d).

Shape suffixes: b batch, h heads, m landmarks.
"""

from typing import Any

from torch import Tensor

from laplacianformer import ops
from laplacianformer.attention._landmarks import Grid
from laplacianformer.attention.baselines._nystrom import KernelAttention


class SoftAttention(KernelAttention):
    """proj(S V + DWC(V)). See `KernelAttention` for kernel, scale and averaged.

    Args:
        dim: channels.
        num_heads: heads.
        tied: one projection for queries and keys, as the paper has it; False for projections as in the other mixers.
        grid: landmarks are the keys averaged over grid x grid cells.
        iterations: of Newton's method.
    """

    mixer = "soft"

    def __init__(
        self, dim: int, num_heads: int, *, tied: bool = True, grid: Grid = "auto", iterations: int = 20, **shared: Any
    ) -> None:
        super().__init__(dim, num_heads, tied=tied, grid=grid, iterations=iterations, **shared)

    def inverse(self, w_bhmm: Tensor) -> Tensor:
        return ops.newton_schulz(w_bhmm, self.iterations, 0.0, start="transpose", gradient="implicit")
