"""The whole global branch in one call of the C++ backend, for evaluation: on small images, calls cost more than work.

No gradient, float32, and the default form of the attention only. Everything else takes the ops one by one.
"""

import torch
from torch import Tensor

from laplacianformer.ops import backend as backends
from laplacianformer.ops.cpu_extension import dense, level, tables
from laplacianformer.ops.newton_schulz.cpu import LARGEST as LARGEST
from laplacianformer.ops.registered import unwatched, wants_gradient

Rotation = tuple[Tensor, Tensor]


def can_run(q: Tensor, k: Tensor, v: Tensor, gain: Tensor | float) -> bool:
    return (
        unwatched(q, k, v, gain)
        and not wants_gradient(q, k, v, gain)
        and q.dtype == k.dtype == v.dtype == torch.float32
        and q.shape == k.shape == v.shape  # attention maps give other values
        and q.shape[0] > 0
        and backends.chosen("laplacian_matmul", backends.requested(None), (q, k)) == "cpu"
    )


def branch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rotation: Rotation | None,
    cell_rotation: Rotation | None,
    factor: Tensor | None,
    gain: Tensor,
    size: tuple[int, int],
    cells: tuple[int, int],
    scale: float,
    eps: float,
    iterations: int,
) -> Tensor:
    """mean(L) + k(Q, Km) gain/m P D L, with L = (m/N) inv(k(Km, Km) + eps I) k(Km, K) V and Km the pooled keys.

    Args:
        q, k, v: (B, heads, H * W, d), turned by `rotation` and, once pooled, by `cell_rotation`: (cos, sin).
        factor: (heads, m) of the whitening, or None.
        gain: (heads,).
        size, cells: the grids of tokens and landmarks.

    Returns:
        (B, heads, H * W, d), with the layout of (B, H * W, heads, d).
    """
    batch, heads, tokens, width = q.shape
    out = q.new_empty(batch, tokens, heads, width).transpose(1, 2)
    turned = (*tables(*(rotation or (None, None))), *tables(*(cell_rotation or (None, None))))
    weights = (None if factor is None else factor.contiguous(), gain)
    settings = (*size, *cells, scale, eps, iterations, level())
    torch.ops.laplacianformer_cpu.branch(*dense(q, k, v), *turned, *weights, out, *settings)
    return out
