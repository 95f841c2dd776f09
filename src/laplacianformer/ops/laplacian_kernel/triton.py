"""The Laplacian kernel and its gradient on GPUs. The mathematics is in reference.py.

Tiles of pairs have four axes, (rows in a thread, columns in a thread, threads along rows, threads along columns):
in this order Triton keeps the first two in registers, and loads what a thread needs straight into them.
No atomics: the same inputs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from laplacianformer.ops import _triton_support as support
from laplacianformer.ops._precision import accumulation_dtype
from laplacianformer.ops._triton_support import check as check

PANEL = tl.constexpr(support.PANEL)
TILE = tl.constexpr(support.TILE)
UNROLL = tl.constexpr(support.UNROLL)

FORWARD = [{"THREADS_N": 16, "THREADS_M": 8, "num_warps": 4}, {"THREADS_N": 16, "THREADS_M": 16, "num_warps": 8}]
SIGNS = [{"THREADS_N": 16, "THREADS_D": 8, "num_warps": 4}, {"THREADS_N": 16, "THREADS_D": 16, "num_warps": 8}]
WARPS_OF_WEIGHTS = 8  # with 4, float16 runs out of registers on sm_120


@support.on_its_device
def forward(x: Tensor, y: Tensor, scale: float) -> Tensor:
    x_bnd, y_bmd = support.matrices(x, y)
    out_bnm = x.new_empty(*x_bnd.shape[:2], y_bmd.shape[1])
    kernel_matrix(support.panels(x_bnd), support.panels(y_bmd), out_bnm, scale)
    return out_bnm.view(*x.shape[:-1], y.shape[-2])


@support.on_its_device
def backward(grad: Tensor, x: Tensor, y: Tensor, out: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    grad_bnm, x_bnd, y_bmd, out_bnm = support.matrices(grad, x, y, out)
    dx, dy = zeros(x_bnd), zeros(y_bmd)
    for batch, rows, columns in support.tiles(dx, dy):
        weights = weights_like(dx[batch, rows], dy[batch, columns])
        multiply(grad_bnm[batch, rows, columns], out_bnm[batch, rows, columns], *weights)
        add_sign_products(*weights, x_bnd[batch, rows], y_bmd[batch, columns], dx[batch, rows], dy[batch, columns])
    return dx.div_(-scale).to(x.dtype).reshape(x.shape), dy.div_(-scale).to(y.dtype).reshape(y.shape)


def kernel_matrix(x: Tensor, y: Tensor, out: Tensor, scale: float) -> None:
    """exp(-|x_i - y_j|_1 / scale) of panels, into (B, N, M)."""
    batch, n, m = out.shape
    if out.numel() == 0:
        return
    block = block_of_rows(n, x.dtype)
    grid = (batch * triton.cdiv(n, block) * triton.cdiv(m, support.TILE),)
    strides = x.stride(0), y.stride(0), *out.stride()[:2]
    factor = support.factor(scale, x.dtype)
    _forward[grid](
        x, y, out, *strides, n, m, x.shape[2], factor, BLOCK_N=block, BLOCK_M=support.TILE, enable_fp_fusion=True
    )


def block_of_rows(n: int, dtype: torch.dtype) -> int:
    return support.TILE if n <= support.TILE or dtype == torch.float64 else support.PANEL


def zeros(x_bnd: Tensor) -> Tensor:
    return x_bnd.new_zeros(x_bnd.shape, dtype=accumulation_dtype(x_bnd.dtype))


def weights_like(x_bnd: Tensor, y_bmd: Tensor) -> tuple[Tensor, Tensor]:
    """Room for an N x M matrix as panels of columns of x for each row of y, and the other way round."""
    (batch, n, _), m = x_bnd.shape, y_bmd.shape[1]

    def panels(long: int, short: int) -> Tensor:
        shape = triton.cdiv(long, support.PANEL), support.round_up(short, support.TILE), support.PANEL
        return x_bnd.new_empty(batch, *shape)

    return panels(n, m), panels(m, n)


def multiply(grad: Tensor, out: Tensor, by_n: Tensor, by_m: Tensor) -> None:
    """The weights grad * out of the signs, zero beyond N and M."""
    batch, n, m = grad.shape
    grid = (batch * 2 * by_n.shape[1] * 2 * by_m.shape[1],)
    _multiply[grid](
        grad, out, by_n, by_m, *grad.stride(), *out.stride(), by_n.stride(0), by_m.stride(0), n, m,
        BLOCK=support.TILE, num_warps=WARPS_OF_WEIGHTS, enable_fp_fusion=True,
    )  # fmt: skip


def add_sign_products(by_n: Tensor, by_m: Tensor, x: Tensor, y: Tensor, dx: Tensor, dy: Tensor) -> None:
    """dx_i += sum_j w_ij sign(x_i - y_j), dy_j += sum_i w_ij sign(y_j - x_i); sign(0) = 0."""
    if x.shape[-1] == 0:
        return
    x_rows, y_rows = support.rows(x), support.rows(y)
    dx += _sign_products(by_n, x_rows, y_rows, x.shape[1], y.shape[1])[..., : x.shape[-1]]
    dy += _sign_products(by_m, y_rows, x_rows, y.shape[1], x.shape[1])[..., : x.shape[-1]]


def _sign_products(weights: Tensor, own: Tensor, other: Tensor, n: int, m: int) -> Tensor:
    batch, _, width = own.shape
    block, block_d = block_of_rows(n, own.dtype), min(width, 32)
    programs = batch * triton.cdiv(n, block) * (width // block_d)
    parts = support.parts(programs, m)
    out = own.new_empty(parts, batch, own.shape[1], width)
    _signs[(programs * parts,)](
        weights, own, other, out, weights.stride(0), own.stride(0), other.stride(0), out.stride(1), n, m,
        weights.shape[2], parts, WIDTH=width, BLOCK_N=block, BLOCK_D=block_d, enable_fp_fusion=True,
    )  # fmt: skip
    return (out[0] if parts == 1 else out.sum(0))[:, :n]


@triton.jit
def in_registers(LENGTH: tl.constexpr, THREADS: tl.constexpr):
    """0 ... LENGTH - 1 as (numbers of one thread, threads): neighbouring threads hold neighbouring numbers."""
    return tl.arange(0, LENGTH // THREADS)[:, None] * THREADS + tl.arange(0, THREADS)[None, :]


@triton.jit
def panel_at(first, length):
    """Where element `first` of the first of `length` rows of panels is."""
    first = tl.cast(first, tl.int64)
    return first // PANEL * length * PANEL + first % PANEL


@triton.jit
def distances(x, y, width, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, TN: tl.constexpr, TM: tl.constexpr):
    """|x_i - y_j|_1 of one tile, on four axes, from where its first feature is."""
    x += in_registers(BLOCK_N, TN)
    y += in_registers(BLOCK_M, TM)
    total = tl.zeros((BLOCK_N // TN, BLOCK_M // TM, TN, TM), x.dtype.element_ty)
    for _ in range(0, width, UNROLL):
        for c in tl.static_range(UNROLL):
            x_n, y_m = tl.load(x + c * PANEL), tl.load(y + c * PANEL)
            total += tl.abs(x_n[:, None, :, None] - y_m[None, :, None, :])
        x += UNROLL * PANEL
        y += UNROLL * PANEL
    return total


@support.tuned(FORWARD, key=["width", "BLOCK_N"])
@triton.jit
def _forward(
    x, y, out, x_batch, y_batch, out_batch, out_row, n, m, width,
    FACTOR: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    THREADS_N: tl.constexpr, THREADS_M: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    across, down = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    i, j = tile // across % down * BLOCK_N, tile % across * BLOCK_M
    b = tl.cast(tile // (across * down), tl.int64)

    x += b * x_batch + panel_at(i, width)
    y += b * y_batch + panel_at(j, width)
    kernel = tl.exp(distances(x, y, width, BLOCK_N, BLOCK_M, THREADS_N, THREADS_M) * FACTOR)

    i = tl.cast(i, tl.int64) + in_registers(BLOCK_N, THREADS_N)[:, None, :, None]
    j = tl.cast(j, tl.int64) + in_registers(BLOCK_M, THREADS_M)[None, :, None, :]
    tl.store(out + b * out_batch + i * out_row + j, kernel, mask=(i < n) & (j < m))


@triton.jit
def store_weights(weights, by_n, by_m, b, i, j, n_batch, m_batch, n, m, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    """One tile of weights in both orders, with zeros beyond N and M."""
    column, row = tl.arange(0, BLOCK_M)[None, :], tl.arange(0, BLOCK_N)[:, None]
    weights = tl.where((i + row < n) & (j + column < m), weights, 0.0)
    rows, columns = tl.cdiv(n, TILE) * TILE, tl.cdiv(m, TILE) * TILE
    by_n += b * n_batch + panel_at(i, columns) + tl.cast(j, tl.int64) * PANEL
    by_m += b * m_batch + panel_at(j, rows) + tl.cast(i, tl.int64) * PANEL
    tl.store(by_n + column * PANEL + row, weights, mask=j + column < columns)
    tl.store(by_m + row * PANEL + column, weights, mask=i + row < rows)


@triton.jit
def _multiply(
    grad, out, by_n, by_m, grad_batch, grad_row, grad_column, out_batch, out_row, out_column, n_batch, m_batch, n, m,
    BLOCK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    across, down = tl.cdiv(m, PANEL) * (PANEL // BLOCK), tl.cdiv(n, PANEL) * (PANEL // BLOCK)
    i, j = tile // across % down * BLOCK, tile % across * BLOCK
    b = tl.cast(tile // (across * down), tl.int64)

    row = tl.cast(i, tl.int64) + tl.arange(0, BLOCK)[:, None]
    column = tl.cast(j, tl.int64) + tl.arange(0, BLOCK)[None, :]
    inside = (row < n) & (column < m)
    grad += b * grad_batch + row * grad_row + column * grad_column
    out += b * out_batch + row * out_row + column * out_column
    dtype = by_n.dtype.element_ty
    weights = tl.load(grad, mask=inside, other=0.0).to(dtype) * tl.load(out, mask=inside, other=0.0).to(dtype)
    store_weights(weights, by_n, by_m, b, i, j, n_batch, m_batch, n, m, BLOCK, BLOCK)


@support.tuned(SIGNS, key=["WIDTH", "BLOCK_N"])
@triton.jit
def _signs(
    weights, own, other, out, weights_batch, own_batch, other_batch, out_batch, n, m, weights_rows, parts,
    WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    THREADS_N: tl.constexpr, THREADS_D: tl.constexpr,
):  # fmt: skip
    """out_ic = sum_j weights_ij sign(own_ic - other_jc), over one part of the j."""
    tile = tl.program_id(0)
    across: tl.constexpr = WIDTH // BLOCK_D
    down = tl.cdiv(n, BLOCK_N)
    i, c = tile // across % down * BLOCK_N, tile % across * BLOCK_D
    part = tile // (across * down) % parts
    b = tl.cast(tile // (across * down * parts), tl.int64)
    batches = tl.num_programs(0) // (across * down * parts)

    length = tl.cdiv(tl.cdiv(m, parts), UNROLL) * UNROLL
    first = tl.cast(part, tl.int64) * length
    last = tl.minimum(first + length, tl.cdiv(m, UNROLL) * UNROLL)
    weights += b * weights_batch + panel_at(i, weights_rows) + first * PANEL + in_registers(BLOCK_N, THREADS_N)
    column = c + in_registers(BLOCK_D, THREADS_D)
    other += b * other_batch + first * WIDTH + column
    at = (tl.cast(i, tl.int64) + in_registers(BLOCK_N, THREADS_N)[:, None, :, None]) * WIDTH + column[None, :, None, :]
    x = tl.load(own + b * own_batch + at)

    total = tl.zeros((BLOCK_N // THREADS_N, BLOCK_D // THREADS_D, THREADS_N, THREADS_D), x.dtype)
    for _ in range(first, last, UNROLL):
        for j in tl.static_range(UNROLL):
            w, y = tl.load(weights + j * PANEL)[:, None, :, None], tl.load(other + j * WIDTH)[None, :, None, :]
            total += w * ((x > y).to(x.dtype) - (x < y).to(x.dtype))
        weights += UNROLL * PANEL
        other += UNROLL * WIDTH
    tl.store(out + (part * batches + b) * out_batch + at, total)
