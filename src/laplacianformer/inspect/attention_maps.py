"""What the layers look at: the weights with which one token takes the values of all tokens.

The global branch of an attention layer is linear in its values, out = A V. For LaplacianFormer, A = (m/N) Z inv(W) B
(docs/paper.md). Row i of A is what token i looks at. Its weights may be negative: such a token is subtracted.
(Conjugate gradients are linear only once they have converged.)
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer.attention import GridAttention
from laplacianformer.model import LaplacianFormer
from laplacianformer.ops.pooling import Size

MOST_NUMBERS = 2**24  # of the values that go through a layer at one time: 128 MB


@dataclass(frozen=True)
class AttentionMap:
    """The map of one layer, float64."""

    stage: int
    query: Size  # row and column on the grid of tokens
    weights: Tensor  # (heads, H, W): the row of A, with 1 / (H * W) where every token counts the same


@torch.no_grad()
def attention_maps(model: nn.Module, image: Tensor, place: tuple[float, float] = (0.5, 0.5)) -> list[AttentionMap]:
    """The map of the last block of each stage, for one image (channels, height, width) and one query.

    The query is the token at `place`: x and y from 0 (left, top) to 1 (right, bottom). All in float64.
    """
    if not isinstance(model, LaplacianFormer):
        raise InputError(f"attention can be drawn for LaplacianFormer, not for {type(model).__name__}")
    if not all(0 <= part <= 1 for part in place):
        raise InputError(f"the query must lie between 0,0 (left, top) and 1,1 (right, bottom), got {place}")
    twin = copy.deepcopy(model).to("cpu", torch.float64).eval()  # not every accelerator has float64
    seen: list[tuple[GridAttention, Tensor, Size]] = []

    def see(layer: Any, inputs: tuple[Tensor, Size]) -> None:
        seen.append((layer, *inputs))

    stages: Any = twin.stages
    for stage in stages:
        stage.blocks[-1].attention.register_forward_pre_hook(see)
    twin(image[None].to("cpu", torch.float64))

    maps = []
    for number, (layer, tokens, size) in enumerate(seen, 1):
        query = tuple(min(int(part * length), length - 1) for part, length in zip(place[::-1], size, strict=True))
        row = attention_row(layer, tokens, size, query[0] * size[1] + query[1])
        maps.append(AttentionMap(number, (query[0], query[1]), row[0].unflatten(1, size)))
    return maps


@torch.no_grad()
def attention_row(layer: GridAttention, tokens: Tensor, size: Size, query: int) -> Tensor:
    """Row `query` of A, (B, heads, N): the layer's answer to values that are the columns of the identity."""
    queries, keys, values = layer.project(tokens, size)
    count = values.shape[2]
    width = max(1, MOST_NUMBERS // (values.shape[0] * values.shape[1] * count))
    parts = []
    for first in range(0, count, width):
        some = min(width, count - first)
        columns = torch.eye(count, some, dtype=values.dtype, device=values.device).roll(first, 0)
        parts.append(layer.mix(queries, keys, columns.expand(*values.shape[:2], -1, -1), size)[:, :, query])
    return torch.cat(parts, dim=-1)
