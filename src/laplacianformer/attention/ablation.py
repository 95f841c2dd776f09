"""Laplacian attention with exchangeable parts, for experiments: kernel, Gram matrix, solver, landmarks, whitening.

C and W are stored, whatever the parts are; `LaplacianAttention` computes the default form much faster.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from laplacianformer import ops
from laplacianformer.attention._factors import Decomposition
from laplacianformer.attention._grid import CONVOLUTIONS, check_count, in_float32
from laplacianformer.attention._kernels import KERNELS, kernel_matrix, kernel_product
from laplacianformer.attention._landmarks import Grid
from laplacianformer.attention._magnitudes import SMALLEST, mean_square, normalised_sums, with_ones
from laplacianformer.attention._qk_norm import QueryKeyNorm
from laplacianformer.attention._whitening import Kind
from laplacianformer.attention.laplacian import LaplacianAttention
from laplacianformer.ops import _check as check
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import without_autocast
from laplacianformer.ops._token_mask import TokenMask
from laplacianformer.ops.column_variance import batch_variance
from laplacianformer.ops.laplacian_attention.reference import (
    exact_where_possible,
    fold,
    landmarks_per_token,
    whitening_factor,
    without_absent,
)
from laplacianformer.ops.laplacian_attention.settings import Settings

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "kernel": KERNELS,
    "gram": ("keys", "cross"),
    "solver": ("newton_schulz", "conjugate_gradient", "cholesky"),
    "start": ("identity", "transpose", "authors", None),
    "gradient": ("exact", "implicit"),
    "landmarks": ("pool", "conv"),
    "whitening": ("running", "synced", "instance", "full", None),
}
_POSITIVE = ("laplacian", "gaussian", "matern")  # kernels without zeros or signs


class AblationAttention(LaplacianAttention):
    """`LaplacianAttention` with other parts. The defaults are the same.

    Args:
        dim: channels.
        num_heads: heads.
        kernel: "laplacian", "gaussian", "matern", "cosine" or "polynomial"; `scale` is that of the kernel.
        gram: W among the landmark keys ("keys"), or between landmark queries and keys ("cross").
        solver: "newton_schulz", "conjugate_gradient" or "cholesky" (exact; a ridge solve with gram="cross").
        start: of Newton-Schulz, "identity", "transpose" or "authors"; see `ops.newton_schulz`. None: "identity" where W
            is symmetric, "transpose" where it is not.
        gradient: of Newton-Schulz, "exact" or "implicit".
        grid: as in `LaplacianAttention`; None for `ratio`.
        ratio: one landmark per ratio x ratio tokens (with grid=None): the paper's form, whose cost grows quadratically
            with the tokens. With neither, every token is a landmark: the exact form.
        landmarks: "pool", or "conv": a learned 3 x 3 depth-wise filter before the averaging.
        whitening: beside "running", "synced" and None: "instance", the variance over the queries of each image, and
            "full", the inverse square root of the m x m covariance of each image.
        tied: one projection for queries and keys.
        relative_eps: of the whitening, times the mean square of a column over the queries, in place of 1e-5: no cap on
            the factor of a layer whose kernel is small. Needs whitening="running".
        normalised_values: L = inv(W) diag(W 1 / B 1) B V in place of (m/N) inv(W) B V, for a kernel that is positive.
        **others: axes, prefix, scale, iterations, eps, gain, qk_norm, rope, qkv_bias, proj_drop; see
            `LaplacianAttention`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kernel: Literal["laplacian", "gaussian", "matern", "cosine", "polynomial"] = "laplacian",
        gram: Literal["keys", "cross"] = "keys",
        solver: Literal["newton_schulz", "conjugate_gradient", "cholesky"] = "newton_schulz",
        start: Literal["identity", "transpose", "authors"] | None = None,
        gradient: Literal["exact", "implicit"] = "exact",
        grid: Grid | None = "auto",
        ratio: int | None = None,
        landmarks: Literal["pool", "conv"] = "pool",
        whitening: Kind | Literal["instance", "full"] | None = "running",
        tied: bool = False,
        relative_eps: float | None = None,
        normalised_values: bool = False,
        **others: Any,
    ) -> None:
        name = type(self).__name__
        given = {"kernel": kernel, "gram": gram, "solver": solver, "start": start, "gradient": gradient}
        for option, value in {**given, "landmarks": landmarks, "whitening": whitening}.items():
            check.choice(name, _CHOICES[option], **{option: value})
        if grid is not None and ratio is not None:
            raise ValueError(f"{name}: give grid or ratio, not both: got grid={grid}, ratio={ratio} (pass grid=None)")
        per_image = whitening if whitening in ("instance", "full") else None
        stored: Any = None if per_image else whitening
        super().__init__(dim, num_heads, grid="auto" if grid is None else grid, whitening=stored, **others)
        self.per_image = per_image
        if ratio is not None:
            check_count(self, ratio=ratio)
        self.fixed_grid, self.ratio = grid is not None, ratio
        self.kernel_name, self.gram, self.solver = kernel, gram, solver
        self.newton_schulz_start = start or ("identity" if gram == "keys" else "transpose")
        self.gradient: Literal["exact", "implicit"] = gradient
        if tied:
            self.tied, self.qkv = True, nn.Linear(dim, 2 * dim, bias=self.qkv.bias is not None)
        self.landmark_filter = _identity_filter(dim, self.axes) if landmarks == "conv" else None
        self.relative_eps, self.normalised_values = relative_eps, normalised_values
        if self.qk_norm is not None:
            self.qk_norm = QueryKeyNorm(num_heads, self._qk_start(), tied)
        self._check_magnitudes(whitening)

    def _qk_start(self) -> float:
        """Of the scales of queries and keys: no distance above 2 lambda, in the norm of the kernel."""
        return self.scale / (self.head_dim if self.kernel_name == "laplacian" else math.sqrt(self.head_dim))

    def _check_magnitudes(self, whitening: str | None) -> None:
        name = type(self).__name__
        if self.relative_eps is not None:
            check.positive(name, relative_eps=self.relative_eps)
            if whitening != "running":
                raise ValueError(f'{name}: relative_eps needs whitening="running", got whitening={whitening!r}')
        if self.normalised_values and self.kernel_name not in _POSITIVE:
            positive = ", ".join(_POSITIVE)
            raise ValueError(f"{name}: normalised_values needs a kernel of {positive}, got kernel={self.kernel_name!r}")

    def numbers(self) -> dict[str, Any]:
        """Those of `LaplacianAttention` where the parts are the same: their weights are the same."""
        numbers = super().numbers()
        if self.per_image is not None:
            numbers["whitening"] = self.per_image
        if not self.fixed_grid:
            numbers |= {"grid": None, "ratio": self.ratio}
        if self.solver != "newton_schulz":
            numbers["newton_schulz_start"] = None
        if self.solver == "cholesky":
            numbers["iterations"] = None
        if self.relative_eps is not None:
            numbers["whitening_eps"] = f"{self.relative_eps} of the mean square"
        solver = f"{self.solver}, normalised values" if self.normalised_values else self.solver
        return {**numbers, "gram": self.gram, "solver": solver}

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        laid_out = self.lay_out(mask, size)
        with without_autocast(q_bhnd.device):
            q_bhnd, k_bhnd, v_bhnd = in_float32(q_bhnd, k_bhnd, v_bhnd)
            found = self.decompose(q_bhnd, k_bhnd, size, laid_out)
            if self.whitening.training and q_bhnd.shape[0] > 0:
                self.whitening.update(found.variance, self.cells(size), laid_out)
            values_bhmd = found.solve(v_bhnd)
            folded_bhmd, mean_bh1d = fold(values_bhmd, found.whiten(values_bhmd), self.gain, laid_out)
            return found.c_bhnm @ folded_bhmd + mean_bh1d

    def cells(self, size: Size) -> Size:
        if self.fixed_grid:
            return super().cells(size)
        return tuple(-(-length // (self.ratio or 1)) for length in size)

    def is_exact(self, size: Size) -> bool:
        return super().is_exact(size) and self.landmark_filter is None

    def landmarks(self, x_bhnd: Tensor, size: Size, mask: TokenMask | None = None) -> Tensor:
        if self.landmark_filter is None:
            return super().landmarks(x_bhnd, size, mask)
        tokens_bnc = x_bhnd.transpose(1, 2).flatten(2)
        dtype = self.qkv.weight.dtype
        filtered = self.on_grid(self.landmark_filter, tokens_bnc[:, self.prefix :].to(dtype), size)
        filtered = torch.cat([tokens_bnc[:, : self.prefix], filtered.to(x_bhnd.dtype)], dim=1)
        return super().landmarks(filtered.unflatten(2, (self.num_heads, -1)).transpose(1, 2), size, mask)

    def decompose(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size, mask: TokenMask | None = None) -> Decomposition:
        cross, exact = self.gram == "cross", self.is_exact(size)
        if mask is not None:
            q_bhnd, k_bhnd = (x.masked_fill(mask.absent_tokens, 0) for x in (q_bhnd, k_bhnd))
        rotated_q, rotated_k = self.rotate(q_bhnd, size), self.rotate(k_bhnd, size)
        km_bhmd = rotated_k if exact else self.landmarks(k_bhnd, size, mask)
        left_bhmd = km_bhmd if not cross else rotated_q if exact else self.landmarks(q_bhnd, size, mask)
        c_bhnm = kernel_matrix(self.kernel_name, rotated_q, km_bhmd, self.scale)
        variance, factor = self.whiten_by(c_bhnm, size, mask)

        def gram() -> Tensor:
            w_bhmm = kernel_matrix(self.kernel_name, left_bhmd, km_bhmd, self.scale)
            return w_bhmm if mask is None else without_absent(w_bhmm, mask.landmarks_bm)

        def solve(v_bhnd: Tensor) -> Tensor:
            if exact:
                return v_bhnd
            w_bhmm = gram()
            given_bhne = with_ones(v_bhnd, mask) if self.normalised_values else v_bhnd
            summed_bhme = kernel_product(self.kernel_name, left_bhmd, rotated_k, given_bhne, self.scale)
            if self.normalised_values:
                rhs_bhmd = normalised_sums(summed_bhme, w_bhmm, self.eps)
            else:
                rhs_bhmd = landmarks_per_token(v_bhnd, km_bhmd, mask) * summed_bhme
            solved_bhmd = self.solve(w_bhmm, rhs_bhmd)
            if self.landmark_filter is not None:
                return solved_bhmd if mask is None else solved_bhmd.masked_fill(mask.absent_landmarks, 0)
            return exact_where_possible(solved_bhmd, v_bhnd, Settings(**self.settings(v_bhnd, size, mask)))

        return Decomposition(c_bhnm, gram, variance, factor, solve, full=self.per_image == "full")

    def whiten_by(
        self, c_bhnm: Tensor, size: Size, mask: TokenMask | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The variance, where it belongs to the whole batch, and D. With `relative_eps`, the variance includes it."""
        if self.relative_eps is not None:
            found = self.whitening.variance(self.cells(size), c_bhnm.shape[0], mask)
            if isinstance(found, str):
                found = batch_variance(c_bhnm, mask) + self.relative_eps * mean_square(c_bhnm, mask)
            return found, whitening_factor(found, SMALLEST)
        if self.per_image is None:
            variance = self.whitening.variance_of(c_bhnm, self.cells(size), mask)
            return variance, whitening_factor(variance, self.whitening.eps)
        if mask is None:
            rows: Tensor | int = c_bhnm.shape[-2]
            centred = c_bhnm - c_bhnm.mean(-2, keepdim=True)
        else:
            rows, _ = mask.counts(c_bhnm.dtype)
            mean = c_bhnm.masked_fill(mask.absent_tokens, 0).sum(-2, keepdim=True) / rows
            centred = (c_bhnm - mean).masked_fill(mask.absent_tokens, 0)
        if self.per_image == "instance":
            variance = (centred.square().sum(-2, keepdim=True) / rows).squeeze(-2)
            return None, whitening_factor(variance, self.whitening.eps)
        return None, ops.inverse_sqrt(centred.mT @ centred / rows, self.whitening.eps)

    def solve(self, w_bhmm: Tensor, rhs_bhmd: Tensor) -> Tensor:
        """inv(W + eps I) rhs by the solver of this layer; Cholesky becomes a ridge solve where W is not symmetric."""
        symmetric = self.gram == "keys"
        if self.solver == "newton_schulz":
            start = self.newton_schulz_start
            inverse = ops.newton_schulz(w_bhmm, self.iterations, self.eps, start=start, gradient=self.gradient)
            return inverse @ rhs_bhmd
        if self.solver == "conjugate_gradient":
            if symmetric:
                return ops.conjugate_gradient(w_bhmm, rhs_bhmd, self.iterations, self.eps)
            return ops.conjugate_gradient(w_bhmm.mT @ w_bhmm, w_bhmm.mT @ rhs_bhmd, self.iterations, self.eps)
        exact = ops.cholesky_solve if symmetric else ops.ridge_solve
        return exact(w_bhmm, rhs_bhmd, self.eps)

    def extra_repr(self) -> str:
        size = (
            f"grid={' x '.join(map(str, self.grid))}"
            if self.fixed_grid
            else f"ratio={self.ratio}"
            if self.ratio
            else "exact"
        )
        return f"{self.kernel_name}, scale={self.scale}, {size}, gram={self.gram}, {self.solver} x {self.iterations}"


def _identity_filter(dim: int, axes: int) -> nn.Module:
    """A depth-wise convolution of width 3 that starts as the identity."""
    convolution = CONVOLUTIONS[axes](dim, dim, 3, padding=1, groups=dim, bias=False)
    nn.init.dirac_(convolution.weight, groups=dim)
    return convolution
