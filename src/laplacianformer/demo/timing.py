"""Where the time of one image goes: the stages of the model, and the parts of one attention layer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from laplacianformer._util.measuring import interleaved
from laplacianformer.attention import LaplacianAttention
from laplacianformer.attention.landmarks import Size
from laplacianformer.demo.layers import LayerInput
from laplacianformer.model import LaplacianFormer

SECONDS = 0.02  # of measuring, per part


@torch.inference_mode()
def model_times(model: LaplacianFormer, image: Tensor) -> dict[str, float]:
    """Milliseconds of each stage and of the head for one image: medians of interleaved calls."""
    functions: dict[str, Callable[[], Any]] = {}
    x: Any = image[None]
    stages: Any = model.stages
    for number, stage in enumerate(stages, 1):
        functions[f"stage {number}"] = partial(stage, x)
        x = stage(x)
    functions["norm and head"] = lambda: model.forward_head(model.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
    return _medians(functions)


@torch.inference_mode()
def layer_times(entry: LayerInput) -> dict[str, float]:
    """Milliseconds of the parts of one layer, run one by one, and of the whole layer as it runs in the model."""
    layer, tokens, size = entry.layer, entry.tokens, entry.size
    q, k, v = layer.project(tokens, size)
    functions: dict[str, Callable[[], Any]] = {
        "projections": lambda: (layer.project(tokens, size), layer.proj(tokens)),
        **(_kernel_parts(layer, q, k, v, size) if isinstance(layer, LaplacianAttention) else {}),
        "convolution": partial(layer.local, v, size),
        "whole layer": partial(layer, tokens, size),
    }
    if not isinstance(layer, LaplacianAttention):
        functions["mixing"] = partial(layer.mix, q, k, v, size)
    return _medians(functions)


def _kernel_parts(layer: LaplacianAttention, q: Tensor, k: Tensor, v: Tensor, size: Size) -> dict[str, Any]:
    """The global branch in the order of its definition. Where every token is a landmark there is no inverse."""
    placed = layer.place(q, k, size)
    parts: dict[str, Any] = {"landmarks": partial(layer.place, q, k, size)}
    values = layer.landmark_values(placed, v, size)
    if layer.solves(size):
        w = layer.kernel(placed.qm, placed.km)
        kernels = partial(layer.kernel_matmul, placed.qm, placed.k, v, y_rotation=placed.rotation)
        parts["kernel"] = lambda: (layer.kernel(placed.qm, placed.km), kernels())
        parts["inverse"] = partial(layer.solve, w, values)
    parts["product"] = partial(layer.kernel_matmul, placed.q, placed.km, values, x_rotation=placed.rotation)
    return parts


def _medians(functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    return {name: times["median_ms"] for name, times in interleaved(functions, SECONDS)["times"].items()}
