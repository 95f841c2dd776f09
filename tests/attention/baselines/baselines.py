"""Shared by the tests of the baselines: layers, their attention matrices, and an oracle of their inputs."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer.attention import ATTENTIONS, GridAttention

from .. import oracle
from ..oracle import Size

BASELINES = [name for name in ATTENTIONS if name not in ("laplacian", "ablation")]
# Every baseline, and once more those that take another kernel.
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in BASELINES),
    ("soft++", {"kernel": "laplacian"}),
    ("skyformer", {"kernel": "laplacian"}),
]


class Points(NamedTuple):
    """Queries, keys and their landmarks, rotated, and values: float64, (B, heads, N or m, d)."""

    q: Tensor
    k: Tensor
    v: Tensor
    qm: Tensor
    km: Tensor


def build(name: str, *, dim: int = 16, heads: int = 2, seed: int = 0, **options: Any) -> GridAttention:
    """A float64 layer in which no parameter is at its initial value."""
    torch.manual_seed(seed)
    layer = ATTENTIONS[name](dim, heads, **options).double()
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            if key != "qkv.weight":
                parameter += 0.3 * torch.rand_like(parameter)
    return layer


def matrix(layer: GridAttention, x: Tensor, size: Size) -> Tensor:
    """The N x N attention matrix: the layer's answer to values that are the columns of the identity."""
    q, k, v = layer.project(x, size)
    identity = torch.eye(v.shape[2], dtype=v.dtype).expand(*v.shape[:2], -1, -1)
    return layer.mix(q, k, identity, size)


def points(layer: GridAttention, x: Tensor, size: Size, cells: Size | None = None) -> Points:
    """From the parameters alone, with torch's own pooling and rotations as complex numbers."""
    parts = F.linear(x, layer.qkv.weight, layer.qkv.bias).split(layer.dim, dim=-1)
    q, k, v = (part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for part in (parts[0], *parts[-2:]))
    if len(parts) == 2:
        k = q
    cells = cells or size
    position, centre = (oracle.pool_map(oracle.coordinates(size), size, grid)[0, 0].T for grid in (size, cells))
    qm, km = (oracle.pool_map(part, size, cells) for part in (q, k))
    if not layer.rope:
        return Points(q, k, v, qm, km)
    return Points(
        oracle.rotate(q, *position),
        oracle.rotate(k, *position),
        v,
        oracle.rotate(qm, *centre),
        oracle.rotate(km, *centre),
    )


def row_normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)
