"""What the Nystrom baselines share: a kernel matrix approximated through landmarks.

    S = k(Q, X) inv(k(X, X)) k(X, K)        X landmarks, m of them        out = S V

k is the Gaussian kernel of SOFT and Skyformer, exp(-|x - y|_2^2 / (2 sqrt(d))), or the Laplacian in its place,
exp(-|x - y|_1 / (4 d^(1/4))): both papers divide queries and keys by d^(1/4) first. Methods differ in their landmarks
and in their inverse. Landmarks are averaged first and rotated at the centres of their cells, as in laplacian.py. All in
float32 (float64 for float64 inputs).

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from laplacianformer.attention._grid import check_count, in_float32
from laplacianformer.attention._kernels import kernel_matrix, kernel_product
from laplacianformer.attention._landmarks import LandmarkAttention
from laplacianformer.ops import _check as check
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import without_autocast
from laplacianformer.ops._token_mask import TokenMask
from laplacianformer.ops.laplacian_attention.reference import without_absent

Kernel = Literal["gaussian", "laplacian"]


class KernelAttention(LandmarkAttention):
    """proj(S V + DWC(V)). Subclasses define `inverse`, and `points` where landmarks are not those of the keys.

    Args:
        dim: channels.
        num_heads: heads.
        kernel: "gaussian" or "laplacian".
        scale: sigma of the Gaussian kernel or lambda of the Laplacian; None for d^(1/4) and 4 d^(1/4).
        averaged: times 1 / N (m / N for SOFT++), so that equal tokens give the mean of the values, not their sum. The
            papers' own blocks do without: SOFT's normalises after the attention, the blocks here before it.
        iterations: of the inverse.
        **shared: grid, rope, tied, qkv_bias, proj_drop; see `LandmarkAttention` and `GridAttention`.
    """

    # Whether S is k(Q, K), with nothing to solve, where every token is a landmark.
    has_exact_form = True

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kernel: Kernel = "gaussian",
        scale: float | None = None,
        averaged: bool = False,
        iterations: int,
        **shared: Any,
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        check_count(self, iterations=iterations)
        self.iterations = iterations
        check.choice(type(self).__name__, ("gaussian", "laplacian"), kernel=kernel)
        if scale is None:
            scale = self.head_dim**0.25 * (1 if kernel == "gaussian" else 4)
        check.positive(type(self).__name__, scale=scale)
        self.kernel_name, self.scale, self.averaged = kernel, float(scale), averaged

    def numbers(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("scale", "averaged", "iterations")}
        return {**super().numbers(), "kernel": self.kernel_name, **own}

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        with without_autocast(q_bhnd.device):
            q_bhnd, k_bhnd, v_bhnd = in_float32(q_bhnd, k_bhnd, v_bhnd)
            rotated_q, rotated_k = self.rotate(q_bhnd, size), self.rotate(k_bhnd, size)
            there = self.lay_out(mask, size)  # values that don't count are zeros: so are their parts of the products
            average = self.average(size, there)
            if self.is_exact(size):
                return average * self.kernel_matmul(rotated_q, rotated_k, v_bhnd)
            x_bhmd = self.points(q_bhnd, k_bhnd, size, there)
            w_bhmm = self.kernel(x_bhmd, x_bhmd)
            inverse_bhmm = self.inverse(w_bhmm if there is None else without_absent(w_bhmm, self.present(there)))
            values_bhmd = inverse_bhmm @ self.kernel_matmul(x_bhmd, rotated_k, v_bhnd)
            if there is not None:
                values_bhmd = self.masked_values(values_bhmd, v_bhnd, there)
            return self.kernel_matmul(rotated_q, x_bhmd, average * values_bhmd)

    def points(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size, mask: TokenMask | None) -> Tensor:
        """The landmarks X, (B, heads, m, d)."""
        return self.landmarks(k_bhnd, size, mask)

    def present(self, mask: TokenMask) -> Tensor:
        """Which of the landmarks X are there, (B, m)."""
        return mask.landmarks_bm

    def masked_values(self, values_bhmd: Tensor, v_bhnd: Tensor, mask: TokenMask) -> Tensor:
        """What the landmarks carry: nothing where there is none, and V itself where every token is one."""
        values_bhmd = values_bhmd.masked_fill(~self.present(mask)[:, None, :, None], 0)
        if not self.has_exact_form:
            return values_bhmd
        return torch.where(mask.exact_b[:, None, None, None], self.values_of_tokens(mask.pool(v_bhnd)), values_bhmd)

    def values_of_tokens(self, pooled_bhmd: Tensor) -> Tensor:
        """V of the landmarks X, where each of the cells is one token."""
        return pooled_bhmd

    def is_exact(self, size: Size) -> bool:
        return self.has_exact_form and super().is_exact(size)

    def inverse(self, w_bhmm: Tensor) -> Tensor:
        """What stands between the two kernels, from the kernel among the landmarks."""
        raise TypeError(f"{type(self).__name__} must define inverse")

    def average(self, size: Size, mask: TokenMask | None) -> Tensor | float:
        """The factor of `averaged`."""
        if not self.averaged:
            return 1.0
        return 1 / (self.prefix + math.prod(size)) if mask is None else 1 / mask.counts(torch.float32)[0]

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        return kernel_matrix(self.kernel_name, x, y, self.scale)

    def kernel_matmul(self, x: Tensor, y: Tensor, values: Tensor) -> Tensor:
        return kernel_product(self.kernel_name, x, y, values, self.scale)

    def extra_repr(self) -> str:
        return f"{self.kernel_name}, scale={self.scale:.4g}, grid={self.grid}, iterations={self.iterations}"
