"""SOFT: Lu, Yao, Zhang, Zhu, Xu, Gao, Xu, Xiang and Zhang, "SOFT: Softmax-free Transformer with Linear Complexity",
2021.

    S = k(Q, X) inv(k(X, X) + eps I) k(X, K)        Q = K        out = S V

The landmarks X are learned: a convolution of the keys, averaged over the cells of a grid, then LayerNorm and GELU. One
projection for queries and keys makes S symmetric and positive semi-definite. The inverse is Newton's iteration with a
ridge of 0.01, from the start of the authors' code, with the gradient of the inverse itself, -Y' G Y', not that of the
steps. Rows are not normalised. O(N m d).

The authors' convolution has one weight per position in a cell (its kernel and stride are the side of a cell), which
needs images of one size. Here it is 3 x 3 with stride 1 before the average, for any grid of tokens. What is not on the
grid (leading tokens, padding) is zero to it; leading tokens become landmarks by LayerNorm and GELU alone.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer import ops
from laplacianformer.attention._grid import CONVOLUTIONS
from laplacianformer.attention._landmarks import Grid
from laplacianformer.attention.baselines._nystrom import KernelAttention
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._token_mask import TokenMask

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class SoftAttention(KernelAttention):
    """proj(S V + DWC(V)). See `KernelAttention` for kernel, scale and averaged.

    Args:
        dim: channels.
        num_heads: heads.
        tied: one projection for queries and keys, as the paper has it; False for projections as in the other mixers.
        grid: landmarks are the convolved keys averaged over grid x grid cells.
        iterations: of Newton's method.
    """

    mixer = "soft"

    # With learned landmarks, S is not k(Q, K) where every token is one.
    has_exact_form = False
    # As in the authors' code, whose SOFT++ has another inverse.
    eps = 0.01
    start: Literal["authors", "transpose"] = "authors"
    gradient: Literal["exact", "implicit"] = "implicit"

    def __init__(
        self, dim: int, num_heads: int, *, tied: bool = True, grid: Grid = "auto", iterations: int = 20, **shared: Any
    ) -> None:
        super().__init__(dim, num_heads, tied=tied, grid=grid, iterations=iterations, **shared)
        # One filter for all heads.
        self.landmark_filter = CONVOLUTIONS[self.axes](self.head_dim, self.head_dim, 3, padding=1, bias=False)
        self.landmark_norm = nn.LayerNorm(self.head_dim)

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "eps": self.eps, "start": self.start}

    def points(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size, mask: TokenMask | None) -> Tensor:
        scale = self.head_dim**0.25  # the authors divide queries by it, and compare them with what LayerNorm gives
        if mask is not None:
            k_bhnd = k_bhnd.masked_fill(mask.absent_tokens, 0)
        x_bhmd = self.pooled(self.filtered(k_bhnd / scale, size), size, mask)
        return self.at_centres(scale * F.gelu(self.normalised(x_bhmd)), size, mask)

    def normalised(self, x_bhmd: Tensor) -> Tensor:
        """LayerNorm in parts: torch.compile assumes another layout for the gradient of the whole than it has."""
        norm = self.landmark_norm
        centred_bhmd = x_bhmd - x_bhmd.mean(-1, keepdim=True)
        scaled_bhmd = centred_bhmd * (centred_bhmd.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
        return scaled_bhmd * norm.weight.to(x_bhmd.dtype) + norm.bias.to(x_bhmd.dtype)

    def filtered(self, x_bhnd: Tensor, size: Size) -> Tensor:
        """The convolution of the tokens on the grid, head by head."""
        before_bhnd, x_bhnd = x_bhnd[..., : self.prefix, :], x_bhnd[..., self.prefix :, :]
        images = x_bhnd.flatten(0, 1).mT.unflatten(2, size)
        convolved = _CONVOLVE[self.axes](images, self.landmark_filter.weight.to(x_bhnd.dtype), padding=1)
        return torch.cat([before_bhnd, convolved.flatten(2).mT.unflatten(0, x_bhnd.shape[:2])], dim=-2)

    def inverse(self, w_bhmm: Tensor) -> Tensor:
        return ops.newton_schulz(w_bhmm, self.iterations, self.eps, start=self.start, gradient=self.gradient)
