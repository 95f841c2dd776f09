"""The attention of ONNX files as one node per layer, which a library of this package computes in onnxruntime.

The node is LaplacianAttention of the domain "laplacianformer", written in C++ in csrc/onnx: the global branch of a
layer in evaluation, without a mask.

    inputs      qkv (B, N, 3 * channels): queries, keys and values, positions not yet applied
                size (axes): the lengths of the grid, int64
                variance (heads, prefix + cells of the grid), of the whitening; may be left out
                gains (heads); left out for the square root of the number of landmarks
    attributes  heads, prefix, grid, iterations, scale, eps, variance_eps; theta of the rotary positions, 0 for none
    output      (B, N, channels)

Shape suffixes: b batch, n tokens, c channels, h heads, d head width.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer.attention import GridAttention, LaplacianAttention
from laplacianformer.attention._rope import THETA
from laplacianformer.ops._pooling import Size
from laplacianformer.ops.newton_schulz.cpu import LARGEST

NODE = "laplacianformer::LaplacianAttention"


@contextmanager
def attention_as_nodes(model: nn.Module) -> Iterator[None]:
    """A block in which every Laplacian attention of a model, while it is traced, is one node of ONNX.

    Raises an InputError if the model has none, or one that the node doesn't compute.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, LaplacianAttention)]
    _check(model, layers)
    for layer in layers:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _check(model: nn.Module, layers: list[LaplacianAttention]) -> None:
    if not layers:
        others = {type(layer).__name__ for layer in model.modules() if isinstance(layer, GridAttention)}
        found = ", ".join(sorted(others)) or "none"
        raise InputError(f"--kernels is for models with Laplacian attention, this one has {found}")
    for layer in layers:
        if type(layer) is not LaplacianAttention:  # what varies the kernel, the solver, the landmarks or the whitening
            raise InputError(
                f"--kernels is for the attention of the named models, this model has {type(layer).__name__} "
                f"({layer.extra_repr()}): export it without"
            )
        if (landmarks := layer.prefix + math.prod(layer.grid)) > LARGEST:
            raise InputError(f"--kernels takes at most {LARGEST} landmarks, this model has {landmarks}")


def _forward(layer: LaplacianAttention, x: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
    """As the layer's own, with the global branch as one node."""
    assert mask is None
    parts_bnc = _projections(layer, x, size)
    v_bhnd = parts_bnc[..., -layer.dim :].unflatten(2, (layer.num_heads, -1)).transpose(1, 2)
    inputs = (parts_bnc, torch.cat([torch.full((1,), length) for length in size]), _variance(layer), _gains(layer))
    mixed_bnc: Tensor = torch.onnx.ops.symbolic(
        NODE, inputs, _attributes(layer), dtype=x.dtype, shape=x.shape, version=1
    )
    out: Tensor = layer.proj(layer.local(v_bhnd, size) + mixed_bnc)
    return out


def _projections(layer: LaplacianAttention, x: Tensor, size: Size) -> Tensor:
    """Queries, keys and values side by side, (B, N, 3 * dim)."""
    if layer.qk_norm is None:
        projected: Tensor = layer.qkv(x)
        return projected
    return torch.cat([part_bhnd.transpose(1, 2).flatten(2) for part_bhnd in layer.project(x, size)], dim=-1)


def _variance(layer: LaplacianAttention) -> Tensor | None:
    """(heads, prefix + cells of the layer's grid)."""
    whitening = layer.whitening
    if whitening.kind is None:
        return None
    on_grid = whitening.running_var.flatten(1)
    return torch.cat([whitening.prefix_running_var, on_grid], dim=1) if layer.prefix else on_grid


def _gains(layer: LaplacianAttention) -> Tensor | None:
    if isinstance(layer.gain, Tensor):
        return layer.gain
    return None if layer.gain == "auto" else torch.full((layer.num_heads,), float(layer.gain))


def _attributes(layer: LaplacianAttention) -> dict[str, Any]:
    return {
        "heads": layer.num_heads,
        "prefix": layer.prefix,
        "grid": list(layer.grid),
        "iterations": layer.iterations,
        "scale": layer.scale,
        "eps": layer.eps,
        "variance_eps": layer.whitening.eps,
        "theta": THETA[layer.axes] if layer.rope else 0.0,
    }
