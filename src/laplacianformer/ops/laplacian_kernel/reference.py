"""The definition of the Laplacian kernel and its gradient, in plain PyTorch, in bounded memory."""

from collections.abc import Iterator

import torch
from torch import Tensor

from laplacianformer.ops._precision import accumulation_dtype

# The largest buffer of pairwise differences, in bytes. On a CPU it should stay in the cache.
CPU_TILE_BYTES = 1 << 22
TILE_BYTES = 1 << 26

_SMALL_SCALE = 2.0**-100


def check(*tensors: Tensor) -> str | None:
    return None


def forward(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """exp(-|x_i - y_j|_1 / scale), (..., N, d), (..., M, d) -> (..., N, M)."""
    dtype = accumulation_dtype(x.dtype)
    distances = torch.cdist(x.to(dtype), y.to(dtype), p=1.0)
    if dtype == torch.float32 and not _SMALL_SCALE <= scale <= 1 / _SMALL_SCALE:
        distances = distances.double()  # the scale itself may be 0 or infinite in float32
    return distances.div_(-scale).exp_().to(x.dtype)


def backward(grad: Tensor, x: Tensor, y: Tensor, out: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    grad_bnm, x_bnd, y_bmd, out_bnm = as_matrices(grad, x, y, out)
    dx, dy = x_bnd.new_zeros(x_bnd.shape), y_bmd.new_zeros(y_bmd.shape)
    for batch, rows, columns in tiles(x_bnd, y_bmd, width=x.shape[-1]):
        weights = grad_bnm[batch, rows, columns] * out_bnm[batch, rows, columns] / -scale
        add_sign_products(weights, x_bnd[batch, rows], y_bmd[batch, columns], dx[batch, rows], dy[batch, columns])
    return dx.reshape(x.shape).to(x.dtype), dy.reshape(y.shape).to(y.dtype)


def as_matrices(*tensors: Tensor) -> tuple[Tensor, ...]:
    """As one batch of matrices each, in the dtype that accumulates."""
    return tuple(t.to(accumulation_dtype(t.dtype)).reshape(t.shape[:-2].numel(), *t.shape[-2:]) for t in tensors)


def add_sign_products(weights: Tensor, x: Tensor, y: Tensor, dx: Tensor, dy: Tensor) -> None:
    """dx_i += sum_j weights_ij sign(x_i - y_j) and dy_j -= sum_i weights_ij sign(x_i - y_j); sign(0) = 0."""
    terms = (x[:, :, None] - y[:, None]).sign_().mul_(weights[..., None])
    dx += terms.sum(-2)
    dy -= terms.sum(-3)


def tiles(x: Tensor, y: Tensor, width: int) -> Iterator[tuple[slice, slice, slice]]:
    """Slices of (batch, rows of x, rows of y) with at most the bound of `width` numbers per pair."""
    batch, n, m = x.shape[0], x.shape[1], y.shape[1]
    if batch == 0 or n == 0 or m == 0:
        return
    pairs = (CPU_TILE_BYTES if x.device.type == "cpu" else TILE_BYTES) // (x.element_size() * max(1, width))
    columns = max(1, min(m, pairs))
    rows = max(1, min(n, pairs // columns))
    matrices = max(1, pairs // (columns * rows))
    for b in range(0, batch, matrices):
        for i in range(0, n, rows):
            for j in range(0, m, columns):
                yield slice(b, b + matrices), slice(i, i + rows), slice(j, j + columns)
