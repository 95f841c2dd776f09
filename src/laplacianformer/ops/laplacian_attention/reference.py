"""The attention as a composition of the other ops: the definition, and what tracing and graphs of gradients use.

    C = k(Q, Km)   B = k(Km, K)   W = k(Km, Km) + eps I   L = (m/N) inv(W) (B V)
    Z = (1 + gain (C - rowmean(C)) D) / m                  out = Z L

The whitening folds away: Z L = C (gain/m P D L) + 1 mean_rows(L), with P = I - 11'/m, so that all of it is two
kernel products and one m x m solve.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from laplacianformer.ops._pooling import pool_heads
from laplacianformer.ops._precision import accumulation_dtype
from laplacianformer.ops._tracing import has_static_size
from laplacianformer.ops.column_variance import column_variance, synced_column_variance
from laplacianformer.ops.laplacian_attention.settings import Rotation, Settings, Variance
from laplacianformer.ops.laplacian_kernel import laplacian_kernel
from laplacianformer.ops.laplacian_matmul import laplacian_matmul
from laplacianformer.ops.newton_schulz import newton_schulz
from laplacianformer.ops.rotate import rotate

Gain = Tensor | float


def attention(
    q_bhnd: Tensor,
    k_bhnd: Tensor,
    v_bhnd: Tensor,
    gain: Gain,
    variance: Variance,
    settings: Settings,
    backend: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Z L in the dtype that accumulates, and the variance of the columns of C that whitened it."""
    q_bhnd, k_bhnd, v_bhnd = (x.to(accumulation_dtype(x.dtype)) for x in (q_bhnd, k_bhnd, v_bhnd))
    placed = place(q_bhnd, k_bhnd, settings, backend)
    values_bhmd = landmark_values(placed, v_bhnd, settings, backend)
    if isinstance(variance, str):
        c_bhnm = kernel_of_queries(placed, settings, backend)
        variance = (column_variance if variance == "batch" else synced_column_variance)(c_bhnm, backend=backend)
        out_bhnd = c_bhnm @ fold(values_bhmd, whitening_factor(variance, settings.variance_eps), gain)
    else:
        folded_bhmd = fold(values_bhmd, whitening_factor(variance, settings.variance_eps), gain)
        out_bhnd = laplacian_matmul(
            placed.q, placed.km, folded_bhmd, settings.scale, x_rotation=placed.rotation, backend=backend
        )
    return out_bhnd + values_bhmd.mean(-2, keepdim=True), variance


class Placed(NamedTuple):
    """Queries, keys and landmarks at their positions; with a rotation, queries and keys are still to be rotated."""

    q: Tensor
    k: Tensor
    km: Tensor
    rotation: Rotation | None


def place(q_bhnd: Tensor, k_bhnd: Tensor, settings: Settings, backend: str | None = None) -> Placed:
    """Landmarks are averaged first and rotated at the centres of their cells: averaging rotated vectors would wipe out
    the high frequencies. Queries and keys are left to the kernel ops, which can rotate rows as they read them."""
    rotation = settings.rotation
    if not settings.solves:
        q_bhnd, k_bhnd = (x if rotation is None else rotate(x, *rotation, backend=backend) for x in (q_bhnd, k_bhnd))
        return Placed(q_bhnd, k_bhnd, k_bhnd, None)
    km_bhmd = pool_heads(k_bhnd, settings.size, settings.cells)
    if settings.cell_rotation is not None:
        km_bhmd = rotate(km_bhmd, *settings.cell_rotation, backend=backend)
    return Placed(q_bhnd, k_bhnd, km_bhmd, rotation)


def kernel_of_queries(placed: Placed, settings: Settings, backend: str | None = None) -> Tensor:
    """C."""
    return laplacian_kernel(placed.q, placed.km, settings.scale, x_rotation=placed.rotation, backend=backend)


def landmark_values(placed: Placed, v_bhnd: Tensor, settings: Settings, backend: str | None = None) -> Tensor:
    """L. Where the landmarks are the keys, B = W and L = V: nothing to solve."""
    if not settings.solves:
        return v_bhnd
    km_bhmd, tokens = placed.km, v_bhnd.shape[-2]
    w_bhmm = laplacian_kernel(km_bhmd, km_bhmd, settings.scale, backend=backend)
    summed_bhmd = laplacian_matmul(
        km_bhmd, placed.k, v_bhnd, settings.scale, y_rotation=placed.rotation, backend=backend
    )
    inverse_bhmm = newton_schulz(w_bhmm, settings.iterations, settings.eps, start="identity", backend=backend)
    solved_bhmd = inverse_bhmm @ (km_bhmd.shape[-2] / tokens * summed_bhmd)
    if has_static_size(settings.size):
        return solved_bhmd
    return pooled_where_exact(solved_bhmd, v_bhnd, settings)


def pooled_where_exact(solved_bhmd: Tensor, v_bhnd: Tensor, settings: Settings) -> Tensor:
    """For one exported graph of every size: where each cell is one token, pooling the values is the identity."""
    spare = torch.full((), v_bhnd.shape[-2] - solved_bhmd.shape[-2], device=v_bhnd.device)
    return torch.where(spare == 0, pool_heads(v_bhnd, settings.size, settings.cells), solved_bhmd)


def whitening_factor(variance: Tensor | None, eps: float) -> Tensor | None:
    """D as a column, (heads, m, 1); None for the identity."""
    return None if variance is None else (variance + eps).rsqrt()[..., None]


def fold(values_bhmd: Tensor, factor: Tensor | None, gain: Gain) -> Tensor:
    """gain/m P D L."""
    whitened = values_bhmd if factor is None else factor * values_bhmd
    return by_head(gain) / values_bhmd.shape[-2] * (whitened - whitened.mean(-2, keepdim=True))


def by_head(gain: Gain) -> Gain:
    """A gain that multiplies (..., heads, rows, columns)."""
    return gain[:, None, None] if isinstance(gain, Tensor) else gain
