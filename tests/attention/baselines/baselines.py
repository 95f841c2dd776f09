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
    """Queries, keys and their landmarks, rotated, and values: float64, (B, heads, N or m, d). `learned`: SOFT's."""

    q: Tensor
    k: Tensor
    v: Tensor
    qm: Tensor
    km: Tensor
    learned: Tensor | None


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
    learned = _learned(layer, k, size, cells) if hasattr(layer, "landmark_filter") else None
    if not layer.rope:
        return Points(q, k, v, qm, km, learned)
    return Points(
        oracle.rotate(q, *position),
        oracle.rotate(k, *position),
        v,
        oracle.rotate(qm, *centre),
        oracle.rotate(km, *centre),
        None if learned is None else oracle.rotate(learned, *centre),
    )


def _learned(layer: Any, k: Tensor, size: Size, cells: Size) -> Tensor:
    """SOFT's landmarks, one image and head at a time, in units of the queries before they are divided."""
    scale = layer.head_dim**0.25
    found = torch.empty(*k.shape[:2], cells[0] * cells[1], k.shape[-1], dtype=k.dtype)
    for image in range(k.shape[0]):
        for head in range(k.shape[1]):
            channels = (k[image, head] / scale).mT.unflatten(1, size)
            convolved = F.conv2d(channels[None], layer.landmark_filter.weight, padding=1)
            pooled = oracle.pool_map(convolved.flatten(2).mT[None], size, cells)[0, 0]
            spread = pooled.var(-1, correction=0, keepdim=True) + layer.landmark_norm.eps
            normed = (pooled - pooled.mean(-1, keepdim=True)) / spread.sqrt()
            normed = normed * layer.landmark_norm.weight + layer.landmark_norm.bias
            found[image, head] = scale * normed * (1 + torch.erf(normed / 2**0.5)) / 2
    return found


def row_normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)
