"""Nystromformer: Xiong, Zeng, Chakraborty, Tan, Fung, Li and Singh, "Nystromformer: A Nystrom-Based Algorithm for
Approximating Self-Attention", 2021.

    S = F pinv(A) B        F = softmax(Q Km' / sqrt(d))    A = softmax(Qm Km' / sqrt(d))    B = softmax(Qm K' / sqrt(d))
    out = S V

Qm and Km are queries and keys averaged over a grid. softmax runs over rows, so F, A and B have rows that sum to one,
and so has S once the pseudo-inverse has converged; its weights may be negative. Where every token is a landmark, S is
softmax attention and nothing is solved. The paper's convolution of the values is the local branch that every mixer
here shares. O(N m d).

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer.attention._grid import allowed, check_count, in_float32
from laplacianformer.attention._landmarks import Grid, LandmarkAttention
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import without_autocast
from laplacianformer.ops.laplacian_attention.reference import without_absent


class NystromformerAttention(LandmarkAttention):
    """proj(S V + DWC(V)).

    Args:
        dim: channels.
        num_heads: heads.
        grid: landmarks are queries and keys averaged over grid x grid cells.
        iterations: of the pseudo-inverse.
        **shared: rope, tied, qkv_bias, proj_drop; see `GridAttention`.
    """

    mixer = "nystromformer"

    def __init__(self, dim: int, num_heads: int, *, grid: Grid = "auto", iterations: int = 6, **shared: Any) -> None:
        super().__init__(dim, num_heads, grid=grid, **shared)
        check_count(self, iterations=iterations)
        self.iterations = iterations

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "iterations": self.iterations}

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        with without_autocast(q_bhnd.device):
            q_bhnd, k_bhnd, v_bhnd = in_float32(q_bhnd, k_bhnd, v_bhnd)
            rotated_q, rotated_k = self.rotate(q_bhnd, size), self.rotate(k_bhnd, size)
            keys = allowed(mask)
            if self.is_exact(size):
                return F.scaled_dot_product_attention(rotated_q, rotated_k, v_bhnd, attn_mask=keys)
            there = self.lay_out(mask, size)
            landmarks = None if there is None else allowed(there.landmarks_bm)
            qm_bhmd, km_bhmd = self.landmarks(q_bhnd, size, there), self.landmarks(k_bhnd, size, there)
            scores_bhmm = qm_bhmd @ km_bhmd.mT / self.head_dim**0.5
            a_bhmm = (scores_bhmm if landmarks is None else scores_bhmm.masked_fill(~landmarks, -torch.inf)).softmax(-1)
            summed_bhmd = F.scaled_dot_product_attention(qm_bhmd, rotated_k, v_bhnd, attn_mask=keys)
            if there is not None:
                a_bhmm = without_absent(a_bhmm, there.landmarks_bm)
            values_bhmd = _pseudo_inverse(a_bhmm, self.iterations) @ summed_bhmd
            if there is not None:
                values_bhmd = torch.where(there.exact_b[:, None, None, None], there.pool(v_bhnd), values_bhmd)
            return F.scaled_dot_product_attention(rotated_q, km_bhmd, values_bhmd, attn_mask=landmarks)


def _pseudo_inverse(a_bhmm: Tensor, iterations: int) -> Tensor:
    """pinv(A) for A without negative entries, by third-order steps: Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4."""
    identity = torch.eye(a_bhmm.shape[-1], dtype=a_bhmm.dtype, device=a_bhmm.device)
    rows, columns = (a_bhmm.sum(dim).amax(-1)[..., None, None] for dim in (-1, -2))
    z_bhmm = a_bhmm.mT / (rows * columns)
    for _ in range(iterations):
        product = a_bhmm @ z_bhmm
        z_bhmm = z_bhmm @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return z_bhmm
