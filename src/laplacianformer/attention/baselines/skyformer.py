"""Skyformer: Chen, Zeng, Ji and Yang, "Skyformer: Remodel Self-Attention with Gaussian Kernel and Nystrom Method",
2021.

    S = k(Q, X) inv(M) k(X, K)        X = [Qm; Km]    M = k(X, X) + eps I        out = S V

k(Q, K) is not the kernel matrix of one set of points, but a corner of the positive definite k([Q; K], [Q; K]),
2 N x 2 N: that one is approximated, through landmarks of both. The authors' code draws its landmarks from the tokens
at random, on every call again; here they are the queries and the keys averaged over a grid, 2 grid^2 of them. With
D = diag(M 1)

    inv(M) = D^(-1/2) inv(D^(-1/2) M D^(-1/2)) D^(-1/2)

and the eigenvalues of what is inverted lie in (0, 1], where Schulz iterations converge. The paper's steps are of third
order; 10 of second order do the work of 6 of them. Rows are not normalised. O(N m d).

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

from typing import Any

import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer.attention._landmarks import Grid
from laplacianformer.attention.baselines._nystrom import KernelAttention
from laplacianformer.ops import _check as check
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._token_mask import TokenMask


class SkyformerAttention(KernelAttention):
    """proj(S V + DWC(V)). See `KernelAttention` for kernel, scale and averaged.

    Args:
        dim: channels.
        num_heads: heads.
        grid: landmarks are queries and keys averaged over grid x grid cells.
        iterations: Newton-Schulz steps.
        eps: added to the diagonal of the kernel among landmarks; 0.1 in the authors' code.
    """

    mixer = "skyformer"

    def __init__(
        self, dim: int, num_heads: int, *, grid: Grid = "auto", iterations: int = 10, eps: float = 0.1, **shared: Any
    ) -> None:
        super().__init__(dim, num_heads, grid=grid, iterations=iterations, **shared)
        check.positive(type(self).__name__, eps=eps)
        self.eps = float(eps)

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "eps": self.eps}

    def points(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size, mask: TokenMask | None) -> Tensor:
        return torch.cat([self.landmarks(q_bhnd, size, mask), self.landmarks(k_bhnd, size, mask)], dim=-2)

    def present(self, mask: TokenMask) -> Tensor:
        return torch.cat([mask.landmarks_bm, mask.landmarks_bm], dim=-1)

    def values_of_tokens(self, pooled_bhmd: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(pooled_bhmd), pooled_bhmd], dim=-2)

    def inverse(self, w_bhmm: Tensor) -> Tensor:
        m_bhmm = w_bhmm + self.eps * torch.eye(w_bhmm.shape[-1], dtype=w_bhmm.dtype, device=w_bhmm.device)
        root_bhm1 = m_bhmm.sum(-1, keepdim=True).rsqrt()
        conditioned_bhmm = root_bhm1 * m_bhmm * root_bhm1.mT
        return root_bhm1 * ops.newton_schulz(conditioned_bhmm, self.iterations, 0.0, start="identity") * root_bhm1.mT
