"""Where the time of one image goes: the stages of the model, and the parts of one attention layer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer._util.measuring import interleaved
from laplacianformer.attention import LaplacianAttention
from laplacianformer.demo.layers import LayerInput
from laplacianformer.model import LaplacianFormer
from laplacianformer.ops._pooling import Size
from laplacianformer.ops.laplacian_attention import reference
from laplacianformer.ops.laplacian_attention.settings import Settings

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
    mixing = partial(layer.mix, q, k, v, size)
    functions: dict[str, Callable[[], Any]] = {
        "projections": lambda: (layer.project(tokens, size), layer.proj(tokens)),
        **(_kernel_parts(layer, q, k, v, size) if type(layer) is LaplacianAttention else {"mixing": mixing}),
        "convolution": partial(layer.local, v, size),
        "whole layer": partial(layer, tokens, size),
    }
    return _medians(functions)


def _kernel_parts(layer: LaplacianAttention, q: Tensor, k: Tensor, v: Tensor, size: Size) -> dict[str, Any]:
    """The global branch in the order of its definition. Where every token is a landmark there is no inverse."""
    settings = Settings(**layer.settings(q, size))
    inputs = reference.kernel_inputs(q, k, settings)
    parts: dict[str, Any] = {"landmarks": partial(reference.kernel_inputs, q, k, settings)}
    values = reference.landmark_values(inputs, v, settings)
    if settings.solves:
        w = ops.laplacian_kernel(inputs.km, inputs.km, layer.scale)
        sums = partial(ops.laplacian_matmul, inputs.km, inputs.k, v, layer.scale, y_rotation=inputs.rotation)
        parts["kernel"] = lambda: (ops.laplacian_kernel(inputs.km, inputs.km, layer.scale), sums())
        parts["inverse"] = partial(ops.newton_schulz, w, layer.iterations, layer.eps, start=layer.newton_schulz_start)
    product = partial(ops.laplacian_matmul, inputs.q, inputs.km, values, layer.scale, x_rotation=inputs.rotation)
    return {**parts, "product": product}


def _medians(functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    return {name: times["median_ms"] for name, times in interleaved(functions, SECONDS)["times"].items()}
