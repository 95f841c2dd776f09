"""The kernel and its gradient in functions of PyTorch that all have derivatives: for forward-mode derivatives, and for
derivatives of gradients. Signs of differences are constants almost everywhere.

Arguments are those of the registered ops: with cosines and sines, the longer of x and y (x, if they are equal) is
rotated first.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from laplacianformer.ops._precision import accumulation_dtype, without_autocast
from laplacianformer.ops.laplacian_kernel.reference import CPU_TILE_BYTES, TILE_BYTES
from laplacianformer.ops.rotate.reference import forward as rotated


def kernel(x: Tensor, y: Tensor, cos: Tensor | None, sin: Tensor | None, scale: float, backend: str) -> Tensor:
    """exp(-|x_i - y_j|_1 / scale)."""
    dtype = x.dtype
    x, y = (each.to(accumulation_dtype(dtype)) for each in rotate_longer(x, y, cos, sin))
    distances = torch.cat([(x[..., rows, None, :] - y[..., None, :, :]).abs().sum(-1) for rows in _rows(x, y)], -2)
    return (distances / -scale).exp().to(dtype)


def gradients(
    grad: Tensor, x: Tensor, y: Tensor, out: Tensor, cos: Tensor | None, sin: Tensor | None, scale: float, backend: str
) -> tuple[Tensor, Tensor]:
    """dx_i = sum_j g_ij sign(x_i - y_j), dy_j = -sum_i g_ij sign(x_i - y_j), g = grad out / -scale."""
    dtype = accumulation_dtype(x.dtype)
    weights = grad.to(dtype) * out.to(dtype) / -scale
    px, py = rotate_longer(x, y, cos, sin)
    parts, dy = [], torch.zeros((), dtype=dtype, device=x.device)
    for rows in _rows(px, py):
        products = weights[..., rows, :, None] * _signs(px, py, rows)
        parts.append(products.sum(-2))
        dy = dy - products.sum(-3)
    dx = torch.cat(parts, -2)
    dx, dy = rotate_longer(dx, dy, cos, None if sin is None else -sin)
    return dx.to(x.dtype), dy.to(y.dtype)


def changes(x: Tensor, y: Tensor, dx: Tensor, dy: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    """How much |x_i - y_j|_1 changes with x and y: sum_k sign(x_ik - y_jk) (dx_ik - dy_jk), (..., N, M)."""
    dtype = accumulation_dtype(x.dtype)
    x, y = rotate_longer(x, y, cos, sin)
    dx, dy = (each.to(dtype) for each in rotate_longer(dx, dy, cos, sin))
    parts = [(_signs(x, y, rows) * (dx[..., rows, None, :] - dy[..., None, :, :])).sum(-1) for rows in _rows(x, y)]
    return torch.cat(parts, -2)


def second_derivative(
    grads: tuple[Tensor, ...],
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of `grad` and of `out` from those of dx and dy; x and y have none but through `out`."""
    grad, x, y, out, cos, sin = saved
    with without_autocast(x.device):
        factor = changes(x, y, grads[0], grads[1], cos, sin) / -scale
        return (out * factor).to(grad.dtype), (grad * factor).to(out.dtype)


def rotate_longer(x: Tensor, y: Tensor, cos: Tensor | None, sin: Tensor | None) -> tuple[Tensor, Tensor]:
    """x and y, the longer of them rotated."""
    if cos is None or sin is None:
        return x, y
    return (rotated(x, cos, sin), y) if x.shape[-2] >= y.shape[-2] else (x, rotated(y, cos, sin))


def _signs(x: Tensor, y: Tensor, rows: slice) -> Tensor:
    dtype = accumulation_dtype(x.dtype)
    return (x.detach()[..., rows, None, :] - y.detach()[..., None, :, :]).sign().to(dtype)


def _rows(x: Tensor, y: Tensor) -> Iterator[slice]:
    """Ranges of rows of x whose differences from y take up to the bound of the reference; one at least."""
    pairs = x.shape[:-2].numel() * y.shape[-2] * x.shape[-1] * accumulation_dtype(x.dtype).itemsize
    step = max(1, (CPU_TILE_BYTES if x.device.type == "cpu" else TILE_BYTES) // max(1, pairs))
    for start in range(0, max(1, x.shape[-2]), step):
        yield slice(start, start + step)
