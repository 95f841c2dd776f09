"""Newton-Schulz on GPUs: for up to 128 rows all steps of a matrix in one program of one launch.

Up to 64 rows, the matrices of a program stay on the chip: in registers, and in shared memory to be multiplied. Only
the iterates that backward needs are written to memory, once, and read once. From 65 to 128 rows registers don't
suffice: matrices are in memory, that is, in the cache, and are multiplied tile by tile. Larger matrices and float64
are torch's batched products, as in reference.py, which has the mathematics.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from laplacianformer.ops import _triton_support as support
from laplacianformer.ops._precision import full_products
from laplacianformer.ops._triton_support import check as check
from laplacianformer.ops.newton_schulz import reference

# Rows up to which matrices stay on the chip, and up to which one launch does all steps.
ON_CHIP = 64
LARGEST = 128

# By the size of matrices: enough registers for them, and enough numbers in a thread.
WARPS = {16: 1, 32: 4, 64: 8, 128: 8}


@support.on_its_device
def forward(w: Tensor, iterations: int, eps: float, start: str) -> Tensor:
    if _large(w):
        with full_products(w.device):
            return reference.forward(w, iterations, eps, start)
    a_bmm = reference.regularised(support.matrices(w)[0], eps)
    iterates = _iterates(_padded(a_bmm), _padded(reference.first(a_bmm, start, eps)), iterations, keep=2)
    return _unpadded(iterates[:, iterations % 2], w)


@support.on_its_device
def backward(grad: Tensor, w: Tensor, iterations: int, eps: float, start: str) -> Tensor:
    if _large(w):
        with full_products(w.device):
            return reference.backward(grad, w, iterations, eps, start)
    grad_bmm, w_bmm = support.matrices(grad, w)
    a_bmm = reference.regularised(w_bmm, eps)
    a, first = _padded(a_bmm), _padded(reference.first(a_bmm, start, eps))
    iterates = _iterates(a, first, iterations - 1, keep=iterations)
    size = w.shape[-1]
    grad_x, grad_a = (g[:, :size, :size] for g in _gradients(a, iterates, _padded(grad_bmm.to(a.dtype))))
    return _unpadded(grad_a + reference.first_adjoint(grad_x, a_bmm, start, eps), w)


def _large(w: Tensor) -> bool:
    return w.shape[-1] > LARGEST or w.dtype == torch.float64


def _iterates(a: Tensor, first: Tensor, steps: int, keep: int) -> Tensor:
    """The last `keep` of X_0 ... X_steps, (B, keep, size, size): X_k is at k, modulo `keep`."""
    batch, size, _ = a.shape
    iterates = a.new_empty(batch, keep, size, size)
    iterates[:, 0] = first
    if batch == 0 or steps == 0:
        return iterates
    if size <= ON_CHIP:
        _steps_on_chip[(batch,)](a, iterates, steps, keep, **configuration(size))
    else:
        _steps[(batch,)](a, iterates, torch.empty_like(a), steps, keep, **configuration(size))
    return iterates


def _gradients(a: Tensor, iterates: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """From the gradient of the last iterate, which is overwritten, to those of the first and of A."""
    batch, iterations, size, _ = iterates.shape
    if batch == 0:
        return grad, torch.empty_like(a)
    if size <= ON_CHIP:
        grad_a = torch.empty_like(a)
        _adjoint_on_chip[(batch,)](a, iterates, grad, grad_a, iterations, **configuration(size))
    else:
        # Zeros, as each step adds to what is there.
        grad_a, products = torch.zeros_like(a), a.new_empty(batch, 3, size, size)
        _adjoint[(batch,)](a, iterates, grad, grad_a, products, iterations, **configuration(size))
    return grad, grad_a


def _padded(a_bmm: Tensor) -> Tensor:
    """With zeros to a size of whole tiles: they stay zeros in every product."""
    size = max(16, triton.next_power_of_2(a_bmm.shape[-1]))
    out = a_bmm.new_zeros(a_bmm.shape[0], size, size)
    out[:, : a_bmm.shape[-1], : a_bmm.shape[-1]] = a_bmm
    return out


def _unpadded(a: Tensor, like: Tensor) -> Tensor:
    size = like.shape[-1]
    return a[:, :size, :size].to(like.dtype).reshape(like.shape).contiguous()


def configuration(size: int) -> dict[str, object]:
    """One for each size: others would add in another order."""
    common: dict[str, object] = {"SIZE": size, "num_warps": WARPS[size], "num_stages": 1, "enable_fp_fusion": True}
    if size <= ON_CHIP:
        return common | {"DEPTH": min(size, 32)}
    return common | {"DEPTH": 16, "BLOCK": 64, "PRECISION": support.input_precision(torch.float32)}


@triton.jit
def plus_product(total, left, right, SIZE: tl.constexpr, DEPTH: tl.constexpr):
    """total + left @ right, in float32, on the chip. DEPTH terms at a time: all of them at once spill."""
    for k in range(0, SIZE, DEPTH):
        some = k + tl.arange(0, DEPTH)[None, :] + tl.zeros((SIZE, 1), tl.int32)
        columns, rows = tl.gather(left, some, 1), tl.gather(right, tl.trans(some), 0)
        total = tl.dot(columns, rows, total, input_precision="ieee")
    return total


@triton.jit
def _steps_on_chip(a, iterates, steps, keep, SIZE: tl.constexpr, DEPTH: tl.constexpr):
    """X_{k+1} = 2 X_k - X_k (A X_k)."""
    matrix = tl.cast(tl.program_id(0), tl.int64) * (SIZE * SIZE)
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    iterates += matrix * keep
    a, x, zero = tl.load(a + matrix + at), tl.load(iterates + at), tl.zeros((SIZE, SIZE), tl.float32)
    for k in range(1, steps + 1):
        x = plus_product(2 * x, -x, plus_product(zero, a, x, SIZE, DEPTH), SIZE, DEPTH)
        if k > steps - keep:
            tl.store(iterates + k % keep * (SIZE * SIZE) + at, x)


@triton.jit
def _adjoint_on_chip(a, iterates, grad_x, grad_a, iterations, SIZE: tl.constexpr, DEPTH: tl.constexpr):
    """The gradients of A and of the first iterate, as in _adjoint below."""
    matrix = tl.cast(tl.program_id(0), tl.int64) * (SIZE * SIZE)
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    iterates += (matrix + SIZE * SIZE) * iterations - SIZE * SIZE
    a_t, g, zero = tl.trans(tl.load(a + matrix + at)), tl.load(grad_x + matrix + at), tl.zeros((SIZE, SIZE), tl.float32)
    total = zero
    for _ in range(iterations):
        x_t = tl.trans(tl.load(iterates + at))
        left = plus_product(zero, x_t, g, SIZE, DEPTH)
        total = plus_product(total, -left, x_t, SIZE, DEPTH)
        right = plus_product(zero, g, x_t, SIZE, DEPTH)
        g = plus_product(2 * g, -right, a_t, SIZE, DEPTH)
        g = plus_product(g, a_t, -left, SIZE, DEPTH)
        iterates -= SIZE * SIZE
    tl.store(grad_x + matrix + at, g)
    tl.store(grad_a + matrix + at, total)


@triton.jit
def add_product(
    out, base, left, right, FACTOR: tl.constexpr, SIGN: tl.constexpr, LEFT_T: tl.constexpr, RIGHT_T: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out = FACTOR base + SIGN left @ right, each transposed on request. Afterwards every thread may read it."""
    i = tl.arange(0, SIZE)[:, None]
    for first in range(0, SIZE, BLOCK):
        j = first + tl.arange(0, BLOCK)[None, :]
        total = tl.zeros((SIZE, BLOCK), tl.float32)
        if FACTOR != 0:
            total += FACTOR * tl.load(base + i * SIZE + j)
        for k in range(0, SIZE, DEPTH):
            across, down = k + tl.arange(0, DEPTH)[None, :], k + tl.arange(0, DEPTH)[:, None]
            a = tl.load(left + (across * SIZE + i if LEFT_T else i * SIZE + across))
            b = tl.load(right + (j * SIZE + down if RIGHT_T else down * SIZE + j))
            total = tl.dot(SIGN * a, b, total, input_precision=PRECISION)
        tl.store(out + i * SIZE + j, total)
    tl.debug_barrier()


@triton.jit
def _steps(
    a, iterates, product, steps, keep,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X_{k+1} = 2 X_k - X_k (A X_k)."""
    matrix = tl.cast(tl.program_id(0), tl.int64) * (SIZE * SIZE)
    a += matrix
    product += matrix
    iterates += matrix * keep
    for k in range(steps):
        x, following = iterates + k % keep * (SIZE * SIZE), iterates + (k + 1) % keep * (SIZE * SIZE)
        add_product(product, product, a, x, 0, 1, False, False, SIZE, BLOCK, DEPTH, PRECISION)
        add_product(following, x, x, product, 2, -1, False, False, SIZE, BLOCK, DEPTH, PRECISION)


@triton.jit
def _adjoint(
    a, iterates, grad_x, grad_a, products, iterations,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the gradient G of the last iterate to those of A and of the first, last step first.

    G_A -= X' G X' and G = 2 G - G X' A' - A' X' G
    """
    matrix = tl.cast(tl.program_id(0), tl.int64) * (SIZE * SIZE)
    a += matrix
    grad_x += matrix
    grad_a += matrix
    x = iterates + (matrix + SIZE * SIZE) * iterations - SIZE * SIZE
    left = products + matrix * 3
    right, half = left + SIZE * SIZE, left + 2 * SIZE * SIZE
    for _ in range(iterations):
        add_product(left, left, x, grad_x, 0, 1, True, False, SIZE, BLOCK, DEPTH, PRECISION)
        add_product(right, right, grad_x, x, 0, 1, False, True, SIZE, BLOCK, DEPTH, PRECISION)
        add_product(grad_a, grad_a, left, x, 1, -1, False, True, SIZE, BLOCK, DEPTH, PRECISION)
        add_product(half, grad_x, right, a, 2, -1, False, True, SIZE, BLOCK, DEPTH, PRECISION)
        add_product(grad_x, half, a, left, 1, -1, True, False, SIZE, BLOCK, DEPTH, PRECISION)
        x -= SIZE * SIZE
