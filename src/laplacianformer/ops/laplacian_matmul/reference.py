"""laplacian_kernel(x, y) @ values tile by tile, and its gradient by recomputation, in plain PyTorch."""

from torch import Tensor

from laplacianformer.ops.laplacian_kernel.reference import add_sign_products, as_matrices, tiles
from laplacianformer.ops.laplacian_kernel.reference import forward as kernel


def check(*tensors: Tensor) -> str | None:
    return None


def forward(x: Tensor, y: Tensor, values: Tensor, scale: float) -> Tensor:
    x_bnd, y_bmd, values_bmv = as_matrices(x, y, values)
    out = values_bmv.new_zeros(*x_bnd.shape[:2], values.shape[-1])
    for batch, rows, columns in tiles(x_bnd, y_bmd, width=1):
        weights = kernel(x_bnd[batch, rows], y_bmd[batch, columns], scale)
        out[batch, rows] += weights @ values_bmv[batch, columns]
    return out.reshape(*x.shape[:-1], values.shape[-1]).to(x.dtype)


def backward(grad: Tensor, x: Tensor, y: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    grad_bnv, x_bnd, y_bmd, values_bmv = as_matrices(grad, x, y, values)
    dx, dy, dvalues = (t.new_zeros(t.shape) for t in (x_bnd, y_bmd, values_bmv))
    for batch, rows, columns in tiles(x_bnd, y_bmd, width=x.shape[-1]):
        x_tile, y_tile, grad_tile = x_bnd[batch, rows], y_bmd[batch, columns], grad_bnv[batch, rows]
        weights = kernel(x_tile, y_tile, scale)
        dvalues[batch, columns] += weights.mT @ grad_tile
        weights.mul_(grad_tile @ values_bmv[batch, columns].mT).div_(-scale)
        add_sign_products(weights, x_tile, y_tile, dx[batch, rows], dy[batch, columns])
    dx, dy, dvalues = (d.reshape(t.shape).to(t.dtype) for d, t in ((dx, x), (dy, y), (dvalues, values)))
    return dx, dy, dvalues
