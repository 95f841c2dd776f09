"""Newton-Schulz on GPUs: for up to 128 rows all steps of a matrix in one program of one launch.

A program multiplies tile by tile, in registers and shared memory; its matrices are small enough to stay in the
cache. Larger matrices and float64 are torch's batched products, as in reference.py, which has the mathematics.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from laplacianformer.ops import triton_support as support
from laplacianformer.ops.newton_schulz import reference
from laplacianformer.ops.precision import full_products
from laplacianformer.ops.triton_support import check as check

LARGEST = 128


@support.on_its_device
def forward(w: Tensor, iterations: int, eps: float, start: str) -> Tensor:
    if _large(w):
        with full_products(w.device):
            return reference.forward(w, iterations, eps, start)
    a_bmm = reference.regularised(support.matrices(w)[0], eps)
    iterates = _iterates(_padded(a_bmm), _padded(reference.first(a_bmm, start)), iterations, keep=2)
    return _unpadded(iterates[:, iterations % 2], w)


@support.on_its_device
def backward(grad: Tensor, w: Tensor, iterations: int, eps: float, start: str) -> Tensor:
    if _large(w):
        with full_products(w.device):
            return reference.backward(grad, w, iterations, eps, start)
    grad_bmm, w_bmm = support.matrices(grad, w)
    a_bmm = reference.regularised(w_bmm, eps)
    a, first = _padded(a_bmm), _padded(reference.first(a_bmm, start))
    iterates = _iterates(a, first, iterations - 1, keep=iterations)
    # The gradients of X and of A, and room for three products. Between products, matrices pass through memory (that
    # is, the cache): whole ones of 64 rows spill in the adjoint.
    work = torch.stack([_padded(grad_bmm.to(a.dtype)), *[torch.zeros_like(a)] * 4], dim=1)
    if len(a):
        _adjoint[(len(a),)](a, iterates, work, iterations, **tiling(a.shape[-1]))
    size = w.shape[-1]
    grad_x, grad_a = work[:, 0, :size, :size], work[:, 1, :size, :size]
    return _unpadded(grad_a + reference.first_adjoint(grad_x, a_bmm, start), w)


def _large(w: Tensor) -> bool:
    return w.shape[-1] > LARGEST or w.dtype == torch.float64


def _iterates(a: Tensor, first: Tensor, steps: int, keep: int) -> Tensor:
    """X_0 ... X_steps, (B, keep, size, size): X_k is at k, modulo `keep`."""
    iterates = a.new_empty(a.shape[0], keep, *a.shape[1:])
    iterates[:, 0] = first
    if len(a) and steps:
        _steps[(len(a),)](a, iterates, torch.empty_like(a), steps, keep, **tiling(a.shape[-1]))
    return iterates


def _padded(a_bmm: Tensor) -> Tensor:
    """With zeros to a size of whole tiles: they stay zeros in every product."""
    size = max(16, triton.next_power_of_2(a_bmm.shape[-1]))
    out = a_bmm.new_zeros(a_bmm.shape[0], size, size)
    out[:, : a_bmm.shape[-1], : a_bmm.shape[-1]] = a_bmm
    return out


def _unpadded(a: Tensor, like: Tensor) -> Tensor:
    size = like.shape[-1]
    return a[:, :size, :size].to(like.dtype).reshape(like.shape).contiguous()


def tiling(size: int) -> dict[str, object]:
    """One configuration for each size: others would add in another order."""
    common = {"PRECISION": support.input_precision(torch.float32), "num_stages": 1, "enable_fp_fusion": True}
    depth = max(16, min(size // 2, 32))
    return common | {"SIZE": size, "BLOCK": min(size, 64), "DEPTH": depth, "num_warps": 8 if size > 32 else 4}


@triton.jit
def add_product(
    out, base, left, right, FACTOR: tl.constexpr, SIGN: tl.constexpr, LEFT_T: tl.constexpr, RIGHT_T: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out = FACTOR base + SIGN left @ right, either of them transposed if so said. Then every thread may read it."""
    for tile in range((SIZE // BLOCK) * (SIZE // BLOCK)):
        i = tile // (SIZE // BLOCK) * BLOCK + tl.arange(0, BLOCK)[:, None]
        j = tile % (SIZE // BLOCK) * BLOCK + tl.arange(0, BLOCK)[None, :]
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, SIZE, DEPTH):
            across, down = k + tl.arange(0, DEPTH)[None, :], k + tl.arange(0, DEPTH)[:, None]
            a = tl.load(left + (across * SIZE + i if LEFT_T else i * SIZE + across))
            b = tl.load(right + (j * SIZE + down if RIGHT_T else down * SIZE + j))
            total += tl.dot(a, b, input_precision=PRECISION)
        total *= SIGN
        if FACTOR != 0:
            total += FACTOR * tl.load(base + i * SIZE + j)
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
    a, iterates, work, iterations,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the gradient G of the last iterate to those of A and of the first, last step first.

    G_A -= X' G X' and G = 2 G - G X' A' - A' X' G
    """
    matrix = tl.cast(tl.program_id(0), tl.int64) * (SIZE * SIZE)
    a += matrix
    x = iterates + (matrix + SIZE * SIZE) * iterations - SIZE * SIZE
    grad_x = work + matrix * 5
    grad_a, left, right, half = (
        grad_x + SIZE * SIZE, grad_x + 2 * SIZE * SIZE, grad_x + 3 * SIZE * SIZE, grad_x + 4 * SIZE * SIZE
    )  # fmt: skip
    for _ in range(iterations):
        add_product(left, left, x, grad_x, 0, 1, True, False, SIZE, BLOCK, DEPTH, PRECISION)
        add_product(right, right, grad_x, x, 0, 1, False, True, SIZE, BLOCK, DEPTH, PRECISION)
        add_product(grad_a, grad_a, left, x, 1, -1, False, True, SIZE, BLOCK, DEPTH, PRECISION)
        add_product(half, grad_x, right, a, 2, -1, False, True, SIZE, BLOCK, DEPTH, PRECISION)
        add_product(grad_x, half, a, left, 1, -1, True, False, SIZE, BLOCK, DEPTH, PRECISION)
        x -= SIZE * SIZE
