"""What one token attends to: in the layer itself, and if its queries and keys were compared in another way.

A query and the keys of a trained layer can be compared in other ways than the one it was trained with. Each gives
weights that sum to one:

    Laplacian   exp(-|q - k|_1 / lambda) / sum        Gaussian   exp(-|q - k|_2^2 / (2 lambda^2)) / sum
    softmax     exp(q'k / sqrt(d)) / sum              (no lambda)

None of them is what the layer itself does: it compares queries with landmarks (`own_map`).
"""

import copy
import math

import torch
from torch import Tensor

from laplacianformer.attention import GridAttention, LaplacianAttention
from laplacianformer.demo.layers import LayerInput, shown_layers
from laplacianformer.inspect._attention_matrix import attention_row
from laplacianformer.model import LaplacianFormer
from laplacianformer.ops._pooling import Size

COMPARISONS = ("Laplacian kernel", "Gaussian kernel", "softmax")


@torch.inference_mode()
def compared_maps(entry: LayerInput, query: Size, scale: float) -> dict[str, Tensor]:
    """For each of `COMPARISONS`, the weights of all tokens for the query at this row and column: (heads, H, W)."""
    queries, keys, _ = entry.layer.project(entry.tokens, entry.size)
    index = query[0] * entry.size[1] + query[1]
    q = entry.layer.rotate(queries, entry.size)[0, :, index : index + 1]
    k = entry.layer.rotate(keys, entry.size)[0]
    # Softmax of the logarithms: a kernel that is 0 in float32 for every key would leave nothing to divide by.
    logarithms = (
        -torch.cdist(q, k, p=1) / scale,
        -(q - k).square().sum(-1)[:, None] / (2 * scale**2),
        q @ k.mT / math.sqrt(q.shape[-1]),
    )
    weights = (logarithm[:, 0].softmax(-1).unflatten(-1, entry.size) for logarithm in logarithms)
    return dict(zip(COMPARISONS, weights, strict=True))


def own_map(entry: LayerInput, query: Size, scale: float) -> Tensor:
    """The weights with which the layer itself, with this lambda, sums the values: (heads, H, W), some negative."""
    index = query[0] * entry.size[1] + query[1]
    layer = copy.copy(entry.layer)  # shares its parameters
    _set_scale(layer, scale)
    return attention_row(layer, entry.tokens, entry.size, index)[0].unflatten(-1, entry.size)


def trained_scale(model: LaplacianFormer) -> float | None:
    """The lambda of the first layer that has one."""
    layers = shown_layers(model).values()
    return next((layer.scale for layer in layers if isinstance(layer, LaplacianAttention)), None)


def with_scale(model: LaplacianFormer, scale: float) -> LaplacianFormer:
    """A copy with this lambda in every layer that has one, otherwise as trained."""
    twin = copy.deepcopy(model)
    for layer in shown_layers(twin).values():
        _set_scale(layer, scale)
    return twin


def _set_scale(layer: GridAttention, scale: float) -> None:
    if isinstance(layer, LaplacianAttention):
        layer.scale = scale
