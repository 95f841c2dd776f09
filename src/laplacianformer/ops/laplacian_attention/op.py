"""laplacian_attention: the public function, and the choice between one C++ call and a composition of the other ops.

It is not registered with torch.library: compilers, exporters, FLOP counters and transforms see the composition, whose
parts are.
"""

import math

from torch import Tensor

from laplacianformer.ops import _check as check
from laplacianformer.ops._backend import requested
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import accumulation_dtype, without_autocast
from laplacianformer.ops._tracing import has_static_size, is_unobserved
from laplacianformer.ops.laplacian_attention import cpu, reference
from laplacianformer.ops.laplacian_attention.reference import Gain
from laplacianformer.ops.laplacian_attention.settings import Rotation, Settings, Variance

_OP = "laplacian_attention"


def laplacian_attention(  # long: its arguments, and what they mean
    q: Tensor,
    k: Tensor,
    v: Tensor,
    size: Size,
    cells: Size,
    scale: float,
    *,
    gain: Gain = 1.0,
    variance: Variance = "batch",
    rotation: Rotation | None = None,
    cell_rotation: Rotation | None = None,
    iterations: int = 6,
    eps: float = 1e-2,
    variance_eps: float = 1e-5,
    backend: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Z L: linear attention with the Laplacian kernel through landmarks, whitened, without the local convolution.

        C = k(Q, Km)   B = k(Km, K)   W = k(Km, Km) + eps I   L = (m/N) inv(W) (B V)
        Z = (1 + gain (C - rowmean(C)) D) / m                  D = diag(1 / sqrt(variance + variance_eps))

    Km are the keys averaged over the cells of a grid. Where every token is a landmark, L = V and nothing is solved.

    Args:
        q, k: (B, heads, H * W, d), tokens in row-major order, positions not yet applied.
        v: (B, heads, H * W, width).
        size: (H, W).
        cells: the grid of landmarks, at most as fine as that of the tokens; m is their number.
        scale: lambda, greater than 0.
        gain: weight of the whitened part: a number, or a tensor with one number per head.
        variance: "batch": of the columns of C over batch and queries; "synced": over the batches of all processes of
            torch.distributed; a tensor (heads, m): a given one, a constant; None: D = I.
        rotation: (cos, sin), (H * W, d / 2) each, to rotate queries and keys by their positions.
        cell_rotation: the same for the landmarks, (m, d / 2) each; given if and only if `rotation` is.
        iterations: Newton-Schulz steps for inv(W).
        eps: added to the diagonal of W.
        variance_eps: added to variances.
        backend: force one on every part (see `backends()`); by default the fastest that can run. On "cpu" all parts are
            one call where that is possible: float32, or float16 and bfloat16 without gradients, at most 128 landmarks,
            values as wide as queries, and gradients only for a variance of the batch.

    Returns:
        (B, heads, H * W, width) in the dtype of q, and the variance that was used, (heads, m) or None, without
        gradient. O(N m d + m^3) time; O(N m) memory with a variance of the batch, which needs C, else O(N + m^2).
    """
    _check_tokens(q, k, v, size, cells)
    _check_whitening(q, gain, variance, cells)
    check.positive(_OP, scale=scale, eps=eps, variance_eps=variance_eps)
    check.iterations(_OP, iterations)
    rotations = _checked_rotations(q, rotation, cell_rotation, size, cells)
    settings = Settings(size, cells, float(scale), iterations, float(eps), float(variance_eps), *rotations)
    variance = variance.detach() if isinstance(variance, Tensor) else variance
    name = requested(backend)
    arguments = q, k, v, gain, variance, settings
    fused = name in ("", "cpu") and is_unobserved(q, k, v, gain, variance) and cpu.check(*arguments) is None
    with without_autocast(q.device):
        out, used = (cpu if fused else reference).attention(*arguments, name or None)
        return out.to(q.dtype), None if used is None else used.detach()


def _check_tokens(q: Tensor, k: Tensor, v: Tensor, size: Size, cells: Size) -> None:
    check.tensors(_OP, q=q, k=k, v=v)
    if q.ndim != 4 or k.shape != q.shape or v.shape[:-1] != q.shape[:-1]:
        raise ValueError(
            f"{_OP}: expected q and k of one shape (B, heads, N, d) and v (B, heads, N, width), "
            f"got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if len(size) != 2 or len(cells) != 2 or q.shape[2] != math.prod(size):
        raise ValueError(f"{_OP}: size {tuple(size)} does not hold {q.shape[2]} tokens: expected (H, W), H * W of them")
    if has_static_size(size) and not all(1 <= cell <= length for cell, length in zip(cells, size, strict=True)):
        raise ValueError(f"{_OP}: cells must be at least 1 and at most {tuple(size)}, the tokens, got {tuple(cells)}")


def _checked_rotations(
    q: Tensor, rotation: Rotation | None, cell_rotation: Rotation | None, size: Size, cells: Size
) -> tuple[Rotation | None, Rotation | None]:
    """The cosines and sines as constants in the dtype that accumulates."""
    if rotation is None and cell_rotation is None:
        return None, None
    if rotation is None or cell_rotation is None:
        raise ValueError(f"{_OP}: give both rotation and cell_rotation, or neither")
    dtype, width = accumulation_dtype(q.dtype), q.shape[-1]
    for name, tables, rows in (("rotation", rotation, size), ("cell_rotation", cell_rotation, cells)):
        check.tensors(_OP, q=q, **{f"cos of {name}": tables[0], f"sin of {name}": tables[1]})
        expected = (math.prod(rows), width // 2)
        if has_static_size(size) and (width % 2 or any(tuple(table.shape) != expected for table in tables)):
            found = " and ".join(str(tuple(table.shape)) for table in tables)
            raise ValueError(f"{_OP}: for heads of width {width}, d even, {name} must be two {expected}, got {found}")
    cos, sin, cell_cos, cell_sin = (table.detach().to(dtype) for table in (*rotation, *cell_rotation))
    return (cos, sin), (cell_cos, cell_sin)


def _check_whitening(q: Tensor, gain: Gain, variance: Variance, cells: Size) -> None:
    heads, landmarks = q.shape[1], math.prod(cells)
    if not isinstance(gain, Tensor):
        check.number(_OP, gain=gain)
    elif tuple(gain.shape) != (heads,):
        raise ValueError(f"{_OP}: a gain per head must be ({heads},), got {tuple(gain.shape)}")
    if isinstance(variance, Tensor):
        if tuple(variance.shape) != (heads, landmarks):
            raise ValueError(f"{_OP}: variance must be ({heads}, {landmarks}), got {tuple(variance.shape)}")
    else:
        check.choice(_OP, ("batch", "synced", None), variance=variance)
    if isinstance(variance, str) and q.shape[0] == 0:
        raise ValueError(f"{_OP}: an empty batch has no variance: give one, or None")
