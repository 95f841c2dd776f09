"""The attention as a composition of the other ops: the definition, and what tracing and graphs of gradients use.

    C = k(Q, Km)   B = k(Km, K)   W = k(Km, Km) + eps I   L = (m/N) inv(W) (B V)
    Z = (1 + gain (C - rowmean(C)) D) / m                  out = Z L

The whitening folds away: Z L = C (gain/m P D L) + 1 mean_rows(L), with P = I - 11'/m, so that all of it is two
kernel products and one m x m solve.

With a mask, N and m of an item count the tokens and landmarks that are there. Rows and columns of W that belong to no
landmark are those of the identity, so that its inverse is block-diagonal, and L and F are zero there.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from laplacianformer.ops._pooling import pool_heads
from laplacianformer.ops._precision import accumulation_dtype
from laplacianformer.ops._token_mask import TokenMask
from laplacianformer.ops._tracing import has_static_size
from laplacianformer.ops.column_variance import batch_variance
from laplacianformer.ops.laplacian_attention.settings import Rotation, Settings, Variance
from laplacianformer.ops.laplacian_kernel import laplacian_kernel
from laplacianformer.ops.laplacian_matmul import laplacian_matmul
from laplacianformer.ops.newton_schulz import newton_schulz
from laplacianformer.ops.rotate import reference as plain_rotation
from laplacianformer.ops.rotate import rotate

# A number, one per head, or "auto": the square root of the number of landmarks.
Gain = Tensor | float | Literal["auto"]


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
    mask = settings.mask
    if mask is not None:  # whatever is in the padding, it stays there
        q_bhnd, k_bhnd, v_bhnd = (x.masked_fill(mask.absent_tokens, 0) for x in (q_bhnd, k_bhnd, v_bhnd))
    inputs = kernel_inputs(q_bhnd, k_bhnd, settings, backend)
    values_bhmd = landmark_values(inputs, v_bhnd, settings, backend)
    c_bhnm = None
    if isinstance(variance, str):
        c_bhnm = kernel_of_queries(inputs, settings, backend)
        variance = batch_variance(c_bhnm, mask, synced=variance == "synced", backend=backend)
    factor = whitening_factor(variance, settings.variance_eps)
    whitened_bhmd = values_bhmd if factor is None else factor * values_bhmd
    folded_bhmd, mean_bh1d = fold(values_bhmd, whitened_bhmd, gain, mask)
    if c_bhnm is not None:
        product_bhnd = c_bhnm @ folded_bhmd
    else:
        q_bhnd, km_bhmd, rotation = inputs.q, inputs.km, inputs.rotation
        product_bhnd = laplacian_matmul(
            q_bhnd, km_bhmd, folded_bhmd, settings.scale, x_rotation=rotation, backend=backend
        )
    out_bhnd = product_bhnd + mean_bh1d
    return out_bhnd if mask is None else out_bhnd.masked_fill(mask.absent_tokens, 0), variance


class KernelInputs(NamedTuple):
    """Queries, keys and landmarks at their positions; with a rotation, queries and keys are still to be rotated."""

    q: Tensor
    k: Tensor
    km: Tensor
    rotation: Rotation | None


def kernel_inputs(q_bhnd: Tensor, k_bhnd: Tensor, settings: Settings, backend: str | None = None) -> KernelInputs:
    """Landmarks are averaged first and rotated at the centres of their cells: averaging rotated vectors would wipe out
    the high frequencies. Queries and keys are left to the kernel ops, which can rotate rows as they read them."""
    rotation = settings.rotation
    if not settings.solves:
        q_bhnd, k_bhnd = (x if rotation is None else rotate(x, *rotation, backend=backend) for x in (q_bhnd, k_bhnd))
        return KernelInputs(q_bhnd, k_bhnd, k_bhnd, None)
    km_bhmd = pool_tokens(k_bhnd, settings)
    if settings.cell_rotation is not None:
        km_bhmd = rotate_landmarks(km_bhmd, settings.cell_rotation, backend)
    return KernelInputs(q_bhnd, k_bhnd, km_bhmd, rotation)


def pool_tokens(x_bhnd: Tensor, settings: Settings) -> Tensor:
    """The means over the cells, behind the tokens that are not on the grid."""
    if settings.mask is not None:
        return settings.mask.pool(x_bhnd)
    return pool_heads(x_bhnd, settings.size, settings.cells, settings.prefix)


def rotate_landmarks(km_bhmd: Tensor, rotation: Rotation, backend: str | None = None) -> Tensor:
    """By (m, d / 2) cosines and sines, or by (B, m, d / 2) with cells of each item."""
    cos, sin = rotation
    if cos.ndim == 2:
        return rotate(km_bhmd, cos, sin, backend=backend)
    return plain_rotation.forward(km_bhmd, cos[:, None], sin[:, None])


def kernel_of_queries(inputs: KernelInputs, settings: Settings, backend: str | None = None) -> Tensor:
    """C."""
    return laplacian_kernel(inputs.q, inputs.km, settings.scale, x_rotation=inputs.rotation, backend=backend)


def landmark_values(inputs: KernelInputs, v_bhnd: Tensor, settings: Settings, backend: str | None = None) -> Tensor:
    """L. Where the landmarks are the keys, B = W and L = V: nothing to solve."""
    if not settings.solves:
        return v_bhnd
    km_bhmd, mask = inputs.km, settings.mask
    w_bhmm = laplacian_kernel(km_bhmd, km_bhmd, settings.scale, backend=backend)
    summed_bhmd = laplacian_matmul(
        km_bhmd, inputs.k, v_bhnd, settings.scale, y_rotation=inputs.rotation, backend=backend
    )
    if mask is not None:
        w_bhmm = without_absent(w_bhmm, mask.landmarks_bm)
    inverse_bhmm = newton_schulz(w_bhmm, settings.iterations, settings.eps, start="identity", backend=backend)
    solved_bhmd = inverse_bhmm @ (landmarks_per_token(v_bhnd, km_bhmd, mask) * summed_bhmd)
    return exact_where_possible(solved_bhmd, v_bhnd, settings)


def landmarks_per_token(v_bhnd: Tensor, km_bhmd: Tensor, mask: TokenMask | None) -> Tensor | float:
    """m/N."""
    if mask is None:
        return km_bhmd.shape[-2] / v_bhnd.shape[-2]
    tokens, landmarks = mask.counts(v_bhnd.dtype)
    return landmarks / tokens


def without_absent(w_bhmm: Tensor, present_bm: Tensor) -> Tensor:
    """W with the rows and columns of the identity where there is no landmark."""
    # Nothing is broadcast to the shape of W: torch.export would ask whether m = m * m, and refuse named sizes from 2.
    absent = ~present_bm[:, None, :, None]
    identity = torch.eye(w_bhmm.shape[-1], dtype=w_bhmm.dtype, device=w_bhmm.device)
    absent, identity = (tensor.expand_as(w_bhmm).contiguous() for tensor in (absent | absent.mT, identity))
    return torch.where(absent, identity, w_bhmm)


def exact_where_possible(solved_bhmd: Tensor, v_bhnd: Tensor, settings: Settings) -> Tensor:
    """L = V where each cell is one token, which pooling the values gives: for items with a mask of few tokens, and in
    one exported graph of every size."""
    if settings.mask is not None:
        solved_bhmd = solved_bhmd.masked_fill(settings.mask.absent_landmarks, 0)
        exact = settings.mask.exact_b[:, None, None, None]
    elif has_static_size(settings.size):
        return solved_bhmd
    else:
        spare = torch.full((), v_bhnd.shape[-2] - solved_bhmd.shape[-2], device=v_bhnd.device)
        exact = spare == 0
    return torch.where(exact, pool_tokens(v_bhnd, settings), solved_bhmd)


def whitening_factor(variance: Tensor | None, eps: float) -> Tensor | None:
    """D as a column, (..., heads, m, 1); None for the identity."""
    return None if variance is None else (variance + eps).rsqrt()[..., None]


def fold(
    values_bhmd: Tensor, whitened_bhmd: Tensor, gain: Gain, mask: TokenMask | None = None
) -> tuple[Tensor, Tensor]:
    """F = gain/m P D L, and mean_rows(L), (B, heads, 1, d), from L and D L."""
    if mask is None:
        count = values_bhmd.shape[-2]
        centred = whitened_bhmd - whitened_bhmd.mean(-2, keepdim=True)
        return by_head(gain, count, values_bhmd) / count * centred, values_bhmd.mean(-2, keepdim=True)
    _, landmarks = mask.counts(values_bhmd.dtype)  # L is zero where there is none: sums need no mask
    centred = whitened_bhmd - whitened_bhmd.sum(-2, keepdim=True) / landmarks
    folded = by_head(gain, landmarks, values_bhmd) / landmarks * centred.masked_fill(mask.absent_landmarks, 0)
    return folded, values_bhmd.sum(-2, keepdim=True) / landmarks


def by_head(gain: Gain, landmarks: Tensor | int, like: Tensor) -> Tensor | float:
    """A gain that multiplies (..., heads, rows, columns). m is a number, or a tensor with that of each item."""
    if isinstance(gain, Tensor):
        return gain[:, None, None]
    if gain != "auto":
        return gain
    if isinstance(landmarks, Tensor):
        return landmarks.sqrt()
    if isinstance(landmarks, int):
        return landmarks**0.5
    # A length of an exported graph: exporters know the square roots of tensors.
    return torch.full((), landmarks, dtype=like.dtype, device=like.device).sqrt()
