"""What the page shows, in numbers: classes, what one token looks at, where the time goes. Nothing of the page itself.

A query and the keys of a trained layer can be compared in other ways than the one it was trained with. Each way gives
weights that sum to one:

    Laplacian   exp(-|q - k|_1 / lambda) / sum        Gaussian   exp(-|q - k|_2^2 / (2 lambda^2)) / sum
    softmax     exp(q'k / sqrt(d)) / sum              (no lambda)

Nothing of this is what the layer itself does: it compares queries with landmarks (`attention_maps`).
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer._util.measuring import interleaved
from laplacianformer.attention import AblationAttention, GridAttention, LaplacianAttention
from laplacianformer.inspect.attention_maps import attention_row
from laplacianformer.model import LaplacianFormer
from laplacianformer.ops.laplacian_attention import reference
from laplacianformer.ops.laplacian_attention.settings import Settings
from laplacianformer.ops.pooling import Size

WAYS = ("Laplacian kernel", "Gaussian kernel", "softmax")
SECONDS = 0.02  # of measuring, for each part


@dataclass(frozen=True)
class Entry:
    """What one picture brings to one attention layer."""

    name: str
    layer: GridAttention
    tokens: Tensor  # (1, H * W, dim)
    size: Size

    @property
    def landmarks(self) -> Size | None:
        """The grid of landmarks, for a layer that has some."""
        return self.layer.cells(self.size) if isinstance(self.layer, LaplacianAttention) else None

    def token(self, place: tuple[float, float]) -> Size:
        """Row and column of the token at a place: x and y from 0 (left, top) to 1 (right, bottom)."""
        row, column = (int(part * length) for part, length in zip(place[::-1], self.size, strict=True))
        return min(row, self.size[0] - 1), min(column, self.size[1] - 1)


def layers(model: LaplacianFormer) -> dict[str, GridAttention]:
    """The attention layers, by names for people."""
    stages: Any = model.stages
    return {
        f"stage {stage}, block {block}": part.attention
        for stage, parts in enumerate(stages, 1)
        for block, part in enumerate(parts.blocks, 1)
    }


@torch.inference_mode()
def look(model: LaplacianFormer, image: Tensor) -> tuple[Tensor, list[Entry]]:
    """The probabilities of the classes for one image (channels, height, width), and what entered each layer."""
    entries: list[Entry] = []

    def note(name: str, layer: Any, inputs: tuple[Tensor, Size]) -> None:
        entries.append(Entry(name, layer, *inputs))

    hooks = [layer.register_forward_pre_hook(partial(note, name)) for name, layer in layers(model).items()]
    try:
        return model(image[None])[0].softmax(0), entries
    finally:
        for hook in hooks:
            hook.remove()


# ---- attention ----


@torch.inference_mode()
def compared(entry: Entry, query: Size, scale: float) -> dict[str, Tensor]:
    """For each of `WAYS`, the weights of all tokens for the query at this row and column: (heads, H, W)."""
    queries, keys, _ = entry.layer.project(entry.tokens, entry.size)
    place = query[0] * entry.size[1] + query[1]
    q = entry.layer.rotate(queries, entry.size, entry.size)[0, :, place : place + 1]
    k = entry.layer.rotate(keys, entry.size, entry.size)[0]
    # Softmax of the logarithms: a kernel that is 0 in float32 for every key would leave nothing to divide by.
    logarithms = (
        -torch.cdist(q, k, p=1) / scale,
        -(q - k).square().sum(-1)[:, None] / (2 * scale**2),
        q @ k.mT / math.sqrt(q.shape[-1]),
    )
    weights = (logarithm[:, 0].softmax(-1).unflatten(-1, entry.size) for logarithm in logarithms)
    return dict(zip(WAYS, weights, strict=True))


def own(entry: Entry, query: Size, scale: float) -> Tensor:
    """With which weights the layer itself, with this lambda, adds up the values: (heads, H, W), some below zero."""
    place = query[0] * entry.size[1] + query[1]
    return attention_row(_scaled(entry.layer, scale), entry.tokens, entry.size, place)[0].unflatten(-1, entry.size)


def trained_scale(model: LaplacianFormer) -> float | None:
    """The lambda of the first layer that has one."""
    return next((layer.scale for layer in layers(model).values() if isinstance(layer, LaplacianAttention)), None)


def with_scale(model: LaplacianFormer, scale: float) -> LaplacianFormer:
    """A copy with this lambda in every layer that has one, otherwise as trained."""
    twin = copy.deepcopy(model)
    for layer in layers(twin).values():
        if isinstance(layer, LaplacianAttention):
            layer.scale = scale
    return twin


def _scaled(layer: GridAttention, scale: float) -> GridAttention:
    """The layer with this lambda, its parameters shared."""
    twin = copy.copy(layer)
    if isinstance(twin, LaplacianAttention):
        twin.scale = scale
    return twin


# ---- time ----


@torch.inference_mode()
def model_times(model: LaplacianFormer, image: Tensor) -> dict[str, float]:
    """Milliseconds of each stage and of the head for one image: medians of calls in turn."""
    functions: dict[str, Callable[[], Any]] = {}
    x: Any = image[None]
    stages: Any = model.stages
    for number, stage in enumerate(stages, 1):
        functions[f"stage {number}"] = partial(stage, x)
        x = stage(x)
    functions["norm and head"] = lambda: model.forward_head(model.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
    return _medians(functions)


@torch.inference_mode()
def layer_times(entry: Entry) -> dict[str, float]:
    """Milliseconds of the parts of one layer, run one by one, and of the whole layer as it runs in the model."""
    layer, tokens, size = entry.layer, entry.tokens, entry.size
    q, k, v = layer.project(tokens, size)
    mixing = partial(layer.mix, q, k, v, size)
    functions: dict[str, Callable[[], Any]] = {
        "projections": lambda: (layer.project(tokens, size), layer.proj(tokens)),
        **(_kernel_parts(layer, q, k, v, size) if _is_laplacian(layer) else {"mixing": mixing}),
        "convolution": partial(layer.local, v, size),
        "whole layer": partial(layer, tokens, size),
    }
    return _medians(functions)


def _is_laplacian(layer: GridAttention) -> TypeGuard[LaplacianAttention]:
    """Whether its parts are those of the definition."""
    return isinstance(layer, LaplacianAttention) and not isinstance(layer, AblationAttention)


def _kernel_parts(layer: LaplacianAttention, q: Tensor, k: Tensor, v: Tensor, size: Size) -> dict[str, Any]:
    """The global branch in the order of its definition. Where every token is a landmark there is no inverse."""
    settings = Settings(**layer.settings(q, size))
    placed = reference.place(q, k, settings)
    parts: dict[str, Any] = {"landmarks": partial(reference.place, q, k, settings)}
    values = reference.landmark_values(placed, v, settings)
    if settings.solves:
        w = ops.laplacian_kernel(placed.km, placed.km, layer.scale)
        sums = partial(ops.laplacian_matmul, placed.km, placed.k, v, layer.scale, y_rotation=placed.rotation)
        parts["kernel"] = lambda: (ops.laplacian_kernel(placed.km, placed.km, layer.scale), sums())
        parts["inverse"] = partial(ops.newton_schulz, w, layer.iterations, layer.eps, start=layer.newton_schulz_start)
    product = partial(ops.laplacian_matmul, placed.q, placed.km, values, layer.scale, x_rotation=placed.rotation)
    return {**parts, "product": product}


def _medians(functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    return {name: times["median_ms"] for name, times in interleaved(functions, SECONDS)["times"].items()}
