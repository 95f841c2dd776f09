"""What the Nystrom baselines share: a kernel matrix approximated through landmarks.

    S = k(Q, X) inv(k(X, X)) k(X, K)        X landmarks, m of them        out = S V

k is the Gaussian kernel of SOFT and Skyformer, exp(-|x - y|_2^2 / (2 sqrt(d))), or the Laplacian in its place,
exp(-|x - y|_1 / 4). Methods differ in their landmarks and in their inverse. Landmarks are averaged first and rotated
at the centres of their cells, as in laplacian.py. Where every token is a landmark, S is k(Q, K) and nothing is solved
(SOFT++ apart).
All in float32 (float64 for float64 inputs).

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

from typing import Any, Literal

from torch import Tensor

from laplacianformer.attention._grid import check_count, in_float32
from laplacianformer.attention._kernels import kernel_matrix, kernel_product
from laplacianformer.attention._landmarks import LandmarkAttention
from laplacianformer.ops import _check as check
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import without_autocast

Kernel = Literal["gaussian", "laplacian"]


class KernelAttention(LandmarkAttention):
    """proj(S V + DWC(V)). Subclasses define `inverse`, and `points` where landmarks are not those of the keys.

    Args:
        dim: channels.
        num_heads: heads.
        kernel: "gaussian" or "laplacian".
        scale: sigma of the Gaussian kernel or lambda of the Laplacian; None for d^(1/4) and 4.
        averaged: times 1 / N (m / N for SOFT++), so that equal tokens give the mean of the values, not their sum. The
            papers' own blocks do without: SOFT's normalises after the attention, the blocks here before it.
        iterations: of the inverse.
        **shared: grid, rope, tied, qkv_bias, proj_drop; see `LandmarkAttention` and `GridAttention`.
    """

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
            scale = self.head_dim**0.25 if kernel == "gaussian" else 4.0
        check.positive(type(self).__name__, scale=scale)
        self.kernel_name, self.scale, self.averaged = kernel, float(scale), averaged

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size) -> Tensor:
        with without_autocast(q_bhnd.device):
            q_bhnd, k_bhnd, v_bhnd = in_float32(q_bhnd, k_bhnd, v_bhnd)
            rotated_q, rotated_k = self.rotate(q_bhnd, size, size), self.rotate(k_bhnd, size, size)
            if self.is_exact(size):
                return self.average(size) * self.kernel_matmul(rotated_q, rotated_k, v_bhnd)
            x_bhmd = self.points(q_bhnd, k_bhnd, size)
            inverse_bhmm = self.inverse(self.kernel(x_bhmd, x_bhmd))
            values_bhmd = inverse_bhmm @ self.kernel_matmul(x_bhmd, rotated_k, v_bhnd)
            return self.kernel_matmul(rotated_q, x_bhmd, self.average(size) * values_bhmd)

    def points(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size) -> Tensor:
        """The landmarks X, (B, heads, m, d)."""
        return self.landmarks(k_bhnd, size)

    def inverse(self, w_bhmm: Tensor) -> Tensor:
        """What stands between the two kernels, from the kernel among the landmarks."""
        raise TypeError(f"{type(self).__name__} must define inverse")

    def average(self, size: Size) -> float:
        """The factor of `averaged`."""
        return 1 / (size[0] * size[1]) if self.averaged else 1.0

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        return kernel_matrix(self.kernel_name, x, y, self.scale)

    def kernel_matmul(self, x: Tensor, y: Tensor, values: Tensor) -> Tensor:
        return kernel_product(self.kernel_name, x, y, values, self.scale)

    def extra_repr(self) -> str:
        return f"{self.kernel_name}, scale={self.scale:.4g}, grid={self.grid}, iterations={self.iterations}"
