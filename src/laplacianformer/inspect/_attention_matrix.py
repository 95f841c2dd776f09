"""Rows of the attention matrix: the weights with which one token takes the values of all tokens.

The global branch of an attention layer is linear in its values, out = A V. For LaplacianFormer, A = (m/N) Z inv(W) B
(docs/paper.md). Row i of A is what token i attends to. A weight may be negative: that value is subtracted.
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
from laplacianformer.ops._pooling import Size

MOST_NUMBERS = 2**24  # of the values that go through a layer at one time: 128 MB


@dataclass(frozen=True)
class TokenAttention:
    """What one token attends to in one layer, in float64."""

    stage: int
    query: Size  # row and column of the token on the grid
    weights: Tensor  # (heads, H, W): the row of A; 1 / (H * W) everywhere where all tokens count the same


@torch.no_grad()
def token_attention(model: nn.Module, image: Tensor, point: tuple[float, float] = (0.5, 0.5)) -> list[TokenAttention]:
    """What one token of an image (channels, height, width) attends to in the last block of each stage.

    The token is the one at `point`: x and y from 0 (left, top) to 1 (right, bottom). All in float64.
    """
    if not isinstance(model, LaplacianFormer):
        raise InputError(f"attention can be drawn for LaplacianFormer, not for {type(model).__name__}")
    if not all(0 <= part <= 1 for part in point):
        raise InputError(f"the query must lie between 0,0 (left, top) and 1,1 (right, bottom), got {point}")
    twin = copy.deepcopy(model).to("cpu", torch.float64).eval()  # not every accelerator has float64
    inputs: list[tuple[GridAttention, Tensor, Size]] = []

    def record(layer: Any, arguments: tuple[Tensor, Size]) -> None:
        inputs.append((layer, *arguments))

    stages: Any = twin.stages
    for stage in stages:
        stage.blocks[-1].attention.register_forward_pre_hook(record)
    twin(image[None].to("cpu", torch.float64))

    found = []
    for stage, (layer, tokens, size) in enumerate(inputs, 1):
        row, column = token_at(point, size)
        weights = attention_row(layer, tokens, size, row * size[1] + column)
        found.append(TokenAttention(stage, (row, column), weights[0].unflatten(1, size)))
    return found


def token_at(point: tuple[float, float], size: Size) -> Size:
    """Row and column of the token that covers a point: x and y from 0 (left, top) to 1 (right, bottom)."""
    x, y = point
    return min(int(y * size[0]), size[0] - 1), min(int(x * size[1]), size[1] - 1)


@torch.no_grad()
def attention_row(layer: GridAttention, tokens: Tensor, size: Size, query: int) -> Tensor:
    """Row `query` of A, (B, heads, N): the output of the layer for values that are the columns of the identity."""
    queries, keys, values = layer.project(tokens, size)
    count = values.shape[2]
    width = max(1, MOST_NUMBERS // (values.shape[0] * values.shape[1] * count))
    parts = []
    for first in range(0, count, width):
        some = min(width, count - first)
        columns = torch.eye(count, some, dtype=values.dtype, device=values.device).roll(first, 0)
        parts.append(layer.mix(queries, keys, columns.expand(*values.shape[:2], -1, -1), size)[:, :, query])
    return torch.cat(parts, dim=-1)
