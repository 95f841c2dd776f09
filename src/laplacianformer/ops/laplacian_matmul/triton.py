"""laplacian_kernel(x, y) @ values and its gradient on GPUs, the kernel never larger than a tile.

The gradient recomputes the kernel. The weights of the signs pass through a buffer of bounded size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from laplacianformer.ops import _triton_support as support
from laplacianformer.ops.laplacian_kernel.triton import (
    PANEL,
    add_sign_products,
    block_of_rows,
    distances,
    panel_at,
    store_weights,
    weights_like,
    zeros,
)


def check(*tensors: Tensor) -> str | None:
    if torch.version.hip is not None and any(tensor.dtype == torch.float64 for tensor in tensors):
        return "Triton has no float64 matrix products on AMD GPUs"
    return support.check(*tensors)


@support.on_its_device
def forward(x: Tensor, y: Tensor, values: Tensor, scale: float) -> Tensor:
    x_bnd, y_bmd, values_bmv = support.matrices(x, y, values)
    out = _product(support.panels(x_bnd), support.panels(y_bmd), values_bmv.contiguous(), x_bnd.shape[1], scale)
    return out.view(*x.shape[:-1], values.shape[-1])


@support.on_its_device
def backward(grad: Tensor, x: Tensor, y: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    grad_bnv, x_bnd, y_bmd, values_bmv = (t.contiguous() for t in support.matrices(grad, x, y, values))
    dvalues = _product(support.panels(y_bmd), support.panels(x_bnd), grad_bnv, y_bmd.shape[1], scale)
    dx, dy = zeros(x_bnd), zeros(y_bmd)
    for batch, rows, columns in support.tiles(dx, dy) if values.shape[-1] else ():
        x_tile, y_tile = x_bnd[batch, rows], y_bmd[batch, columns]
        weights = weights_like(dx[batch, rows], dy[batch, columns])
        _weigh(x_tile, y_tile, grad_bnv[batch, rows], values_bmv[batch, columns], *weights, scale)
        add_sign_products(*weights, x_tile, y_tile, dx[batch, rows], dy[batch, columns])
    dx, dy = dx.div_(-scale).to(x.dtype), dy.div_(-scale).to(y.dtype)
    return dx.view(x.shape), dy.view(y.shape), dvalues.view(values.shape)


def _product(x: Tensor, y: Tensor, values: Tensor, n: int, scale: float) -> Tensor:
    """kernel(x, y) @ values of panels x and y, (B, N, v) in the dtype of the values."""
    batch, m, width = values.shape
    if batch == 0 or n == 0 or m == 0 or width == 0:
        return values.new_zeros(batch, n, width)
    block, block_v = block_of_rows(n, x.dtype), 16 if width <= 16 else 32
    programs = batch * triton.cdiv(n, block) * triton.cdiv(width, block_v)
    parts = support.parts(programs, m)
    out = values.new_empty(parts, batch, n, width, dtype=values.dtype if parts == 1 else x.dtype)
    _forward[(programs * parts,)](
        x, y, values, out, x.stride(0), y.stride(0), n, m, x.shape[2], width, parts, support.factor(scale, x.dtype),
        BLOCK_N=block, BLOCK_M=support.TILE, BLOCK_V=block_v, **threads(block, x.dtype),
    )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0).to(values.dtype)


def _weigh(x: Tensor, y: Tensor, grad: Tensor, values: Tensor, by_n: Tensor, by_m: Tensor, scale: float) -> None:
    """kernel(x, y) * (grad @ values'), zero beyond N and M."""
    x_panels, y_panels, n, m = support.panels(x), support.panels(y), x.shape[1], y.shape[1]
    block = block_of_weights(x_panels.dtype)
    grid = (x.shape[0] * by_n.shape[1] * by_m.shape[1] * (support.PANEL // block) ** 2,)
    _weights[grid](
        x_panels, y_panels, grad, values, by_n, by_m, x_panels.stride(0), y_panels.stride(0), grad.stride(0),
        values.stride(0), by_n.stride(0), by_m.stride(0), n, m, x_panels.shape[2], grad.shape[-1],
        support.factor(scale, x_panels.dtype), BLOCK=block, BLOCK_V=16, **threads(block, x_panels.dtype),
    )  # fmt: skip


def block_of_weights(dtype: torch.dtype) -> int:
    return support.TILE // 2 if dtype == torch.float64 else support.TILE


def threads(block: int, dtype: torch.dtype) -> dict[str, object]:
    """One configuration for each tile: others would add in another order."""
    wide = block * dtype.itemsize > support.TILE * torch.float32.itemsize  # Else registers don't suffice.
    common = {"PRECISION": support.input_precision(dtype), "num_stages": 1, "enable_fp_fusion": True}
    return common | {"THREADS_N": 16, "THREADS_M": 16 if wide else 8, "num_warps": 8 if wide else 4}


@triton.jit
def kernel_tile(
    x, y, width, FACTOR: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, TN: tl.constexpr, TM: tl.constexpr
):
    """exp(-|x_i - y_j|_1 / scale) of one tile, (BLOCK_N, BLOCK_M)."""
    kernel = tl.exp(distances(x, y, width, BLOCK_N, BLOCK_M, TN, TM) * FACTOR)
    return tl.reshape(tl.permute(kernel, (0, 2, 1, 3)), (BLOCK_N, BLOCK_M))


@triton.jit
def _forward(
    x, y, values, out, x_batch, y_batch, n, m, width, v, parts, FACTOR: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr,
    THREADS_N: tl.constexpr, THREADS_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    across, down = tl.cdiv(v, BLOCK_V), tl.cdiv(n, BLOCK_N)
    i = tl.cast(tile // across % down * BLOCK_N, tl.int64)
    column = tile % across * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]
    part = tile // (across * down) % parts
    b = tl.cast(tile // (across * down * parts), tl.int64)
    batches = tl.num_programs(0) // (across * down * parts)

    x += b * x_batch + panel_at(i, width)
    y += b * y_batch
    values += b * m * v + column
    total = tl.zeros((BLOCK_N, BLOCK_V), x.dtype.element_ty)
    length = tl.cdiv(tl.cdiv(m, BLOCK_M), parts) * BLOCK_M
    for j in range(part * length, tl.minimum(m, (part + 1) * length), BLOCK_M):
        kernel = kernel_tile(x, y + panel_at(j, width), width, FACTOR, BLOCK_N, BLOCK_M, THREADS_N, THREADS_M)
        # Rows of a panel beyond M hold anything, NaN too.
        kernel = tl.where(j + tl.arange(0, BLOCK_M)[None, :] < m, kernel, 0.0)
        row = tl.cast(j, tl.int64) + tl.arange(0, BLOCK_M)[:, None]
        some = tl.load(values + row * v, mask=(row < m) & (column < v), other=0.0).to(total.dtype)
        total += tl.dot(kernel, some, input_precision=PRECISION, out_dtype=total.dtype)
    row = i + tl.arange(0, BLOCK_N)[:, None]
    tl.store(out + ((part * batches + b) * n + row) * v + column, total, mask=(row < n) & (column < v))


@triton.jit
def _weights(
    x, y, grad, values, by_n, by_m, x_batch, y_batch, grad_batch, values_batch, n_batch, m_batch, n, m, width, v,
    FACTOR: tl.constexpr, BLOCK: tl.constexpr, BLOCK_V: tl.constexpr,
    THREADS_N: tl.constexpr, THREADS_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    across, down = tl.cdiv(m, PANEL) * (PANEL // BLOCK), tl.cdiv(n, PANEL) * (PANEL // BLOCK)
    i, j = tile // across % down * BLOCK, tile % across * BLOCK
    b = tl.cast(tile // (across * down), tl.int64)

    x += b * x_batch + panel_at(i, width)
    y += b * y_batch + panel_at(j, width)
    weights = kernel_tile(x, y, width, FACTOR, BLOCK, BLOCK, THREADS_N, THREADS_M)
    row = tl.cast(i, tl.int64) + tl.arange(0, BLOCK)[:, None]
    column = tl.cast(j, tl.int64) + tl.arange(0, BLOCK)[None, :]
    along = tl.zeros((BLOCK, BLOCK), weights.dtype)
    for c in range(0, v, BLOCK_V):
        across_v, down_v = c + tl.arange(0, BLOCK_V)[None, :], c + tl.arange(0, BLOCK_V)[:, None]
        g = tl.load(grad + b * grad_batch + row * v + across_v, mask=(row < n) & (across_v < v), other=0.0)
        u = tl.load(values + b * values_batch + column * v + down_v, mask=(column < m) & (down_v < v), other=0.0)
        along += tl.dot(g.to(along.dtype), u.to(along.dtype), input_precision=PRECISION, out_dtype=along.dtype)
    store_weights(weights * along, by_n, by_m, b, i, j, n_batch, m_batch, n, m, BLOCK, BLOCK)
