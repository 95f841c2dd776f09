"""laplacian_attention: the public function, and the choice between one C++ call and a composition of the other ops.

It is not registered with torch.library: compilers, exporters, FLOP counters and transforms see the composition, whose
parts are.
"""

import math

import torch
from torch import Tensor

from laplacianformer.ops import _check as check
from laplacianformer.ops._backend import Composed, requested
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import accumulation_dtype, without_autocast
from laplacianformer.ops._token_mask import TokenMask, lay_out
from laplacianformer.ops._tracing import has_static_size
from laplacianformer.ops.laplacian_attention import cpu, reference
from laplacianformer.ops.laplacian_attention.reference import Gain
from laplacianformer.ops.laplacian_attention.settings import Rotation, Settings, Variance

_OP = "laplacian_attention"
BACKENDS = Composed(cpu=cpu.attention, cpu_check=cpu.check, reference=reference.attention)


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
    prefix: int = 0,
    mask: Tensor | TokenMask | None = None,
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

    Km are the keys averaged over the cells of a grid, after the keys of the tokens before the grid. Where every token
    is a landmark, L = V and nothing is solved.

    Args:
        q, k: (B, heads, N, d): `prefix` leading tokens, then those of the grid in row-major order, positions not yet
            applied.
        v: (B, heads, N, width).
        size: of the grid: (length,), (H, W) or (T, H, W).
        cells: the grid of landmarks, at most as fine as that of the tokens; with the prefix there are m.
        scale: lambda, greater than 0.
        gain: weight of the whitened part: a number, a tensor with one number per head, or "auto", sqrt(m).
        variance: "batch": of the columns of C over batch and queries; "synced": over the batches of all processes of
            torch.distributed; a tensor (heads, m), or (B, heads, m): a given one, a constant; None: D = I.
        prefix: leading tokens that are not on the grid; each is a landmark.
        mask: (B, N) bool, True where a token counts (or what `lay_out` in ops/_token_mask.py made of it). Each item has
            its cells over its own tokens, N and m of the formulas count what is there, and the output is zero where
            the mask is False.
        rotation: (cos, sin), (N, d / 2) each, to rotate queries and keys by their positions.
        cell_rotation: the same for the landmarks, (m, d / 2) each, or (B, m, d / 2) with a mask; given if and only if
            `rotation` is.
        iterations: Newton-Schulz steps for inv(W).
        eps: added to the diagonal of W.
        variance_eps: added to variances.
        backend: force one on every part (see `backends()`); by default the fastest that can run. On "cpu" all parts are
            one call where that is possible: float32, or float16 and bfloat16 without gradients, at most 128 landmarks,
            values as wide as queries, and gradients only for a variance of the batch.

    Returns:
        (B, heads, N, width) in the dtype of q, and the variance that was used, (heads, m) or None, without
        gradient. O(N m d + m^3) time; O(N m) memory with a variance of the batch, which needs C, and for the tables by
        which the composition averages long axes; else O(N + m^2).
    """
    _check_tokens(q, k, v, size, cells, prefix)
    _check_whitening(q, gain, variance, prefix + math.prod(cells))
    laid_out = _checked_mask(q, mask, size, cells, prefix)
    check.positive(_OP, scale=scale, eps=eps, variance_eps=variance_eps)
    check.iterations(_OP, iterations)
    rotations = _checked_rotations(q, rotation, cell_rotation, prefix + math.prod(cells))
    numbers = float(scale), iterations, float(eps), float(variance_eps)
    settings = Settings(tuple(size), tuple(cells), *numbers, *rotations, prefix, laid_out)
    variance = variance.detach() if isinstance(variance, Tensor) else variance
    name = requested(backend)
    arguments = q, k, v, gain, variance, settings
    with without_autocast(q.device):
        out, used = BACKENDS.choose(name, *arguments)(*arguments, name or None)
        return out.to(q.dtype), None if used is None else used.detach()


def _check_tokens(q: Tensor, k: Tensor, v: Tensor, size: Size, cells: Size, prefix: int) -> None:
    check.tensors(_OP, q=q, k=k, v=v)
    if q.ndim != 4 or k.shape != q.shape or v.shape[:-1] != q.shape[:-1]:
        raise ValueError(
            f"{_OP}: expected q and k of one shape (B, heads, N, d) and v (B, heads, N, width), "
            f"got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if not 1 <= len(size) <= 3 or len(cells) != len(size):
        raise ValueError(
            f"{_OP}: size and cells must have one number for each of one to three axes, "
            f"got {tuple(size)} and {tuple(cells)}"
        )
    if isinstance(prefix, bool) or not isinstance(prefix, int) or prefix < 0 or q.shape[2] != prefix + math.prod(size):
        raise ValueError(
            f"{_OP}: size {tuple(size)} does not hold {q.shape[2]} tokens, {prefix} of them before the grid (prefix): "
            f"expected {math.prod(size)} and the prefix"
        )
    if has_static_size(size) and not all(1 <= cell <= length for cell, length in zip(cells, size, strict=True)):
        raise ValueError(f"{_OP}: cells must be at least 1 and at most {tuple(size)}, the tokens, got {tuple(cells)}")


def _checked_mask(q: Tensor, mask: Tensor | TokenMask | None, size: Size, cells: Size, prefix: int) -> TokenMask | None:
    given = mask.mask_bn if isinstance(mask, TokenMask) else mask
    if given is None:
        return None
    if not isinstance(given, Tensor):
        raise TypeError(f"{_OP}: mask must be a tensor of bool, got {type(given).__name__}")
    if given.dtype != torch.bool or given.shape != (q.shape[0], q.shape[2]) or given.device != q.device:
        raise ValueError(
            f"{_OP}: mask must be bool, ({q.shape[0]}, {q.shape[2]}), on {q.device}, "
            f"got {given.dtype}, {tuple(given.shape)} on {given.device}"
        )
    return mask if isinstance(mask, TokenMask) else lay_out(given, tuple(size), tuple(cells), prefix)


def _checked_rotations(
    q: Tensor, rotation: Rotation | None, cell_rotation: Rotation | None, landmarks: int
) -> tuple[Rotation | None, Rotation | None]:
    """The cosines and sines as constants in the dtype that accumulates."""
    if rotation is None and cell_rotation is None:
        return None, None
    if rotation is None or cell_rotation is None:
        raise ValueError(f"{_OP}: give both rotation and cell_rotation, or neither")
    dtype, width = accumulation_dtype(q.dtype), q.shape[-1]
    for name, tables, rows in (("rotation", rotation, q.shape[2]), ("cell_rotation", cell_rotation, landmarks)):
        check.tensors(_OP, q=q, **{f"cos of {name}": tables[0], f"sin of {name}": tables[1]})
        expected = (rows, width // 2)
        shapes = [tuple(table.shape) for table in tables]
        if name == "cell_rotation" and tables[0].ndim == 3:
            shapes = [shape[1:] if shape[0] == q.shape[0] else shape for shape in shapes]
        if has_static_size(q.shape) and (width % 2 or any(shape != expected for shape in shapes)):
            found = " and ".join(str(tuple(table.shape)) for table in tables)
            raise ValueError(f"{_OP}: for heads of width {width}, d even, {name} must be two {expected}, got {found}")
    cos, sin, cell_cos, cell_sin = (table.detach().to(dtype) for table in (*rotation, *cell_rotation))
    return (cos, sin), (cell_cos, cell_sin)


def _check_whitening(q: Tensor, gain: Gain, variance: Variance, landmarks: int) -> None:
    heads = q.shape[1]
    if not isinstance(gain, Tensor):
        if gain != "auto":
            check.number(_OP, gain=gain)
    elif tuple(gain.shape) != (heads,):
        raise ValueError(f"{_OP}: a gain per head must be ({heads},), got {tuple(gain.shape)}")
    if isinstance(variance, Tensor):
        # By the number of dimensions first: comparing the wrong ones would fix the batch of an exported graph.
        expected = (heads, landmarks) if variance.ndim == 2 else (q.shape[0], heads, landmarks)
        if tuple(variance.shape) != expected:
            raise ValueError(f"{_OP}: variance must be ({heads}, {landmarks}), got {tuple(variance.shape)}")
    else:
        check.choice(_OP, ("batch", "synced", None), variance=variance)
    if isinstance(variance, str) and q.shape[0] == 0:
        raise ValueError(f"{_OP}: an empty batch has no variance: give one, or None")
