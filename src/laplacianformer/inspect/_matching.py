"""How well the attention of a converted model matches the softmax attention that it replaced, layer by layer."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from timm.layers import Attention as TokenAttention
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer.attention import GridAttention
from laplacianformer.model._conversion import softmax_layers
from laplacianformer.model._image_size import fixed_size
from laplacianformer.ops._pooling import Size

_LEAST = 1e-12


@dataclass(frozen=True)
class LayerMatch:
    """One layer, on the teacher's own activations: what went in is the same for both."""

    layer: str
    error: (
        float  # |output - teacher's|^2 over what a constant per channel leaves of the teacher's; 0 is a perfect match
    )
    cosine: float  # between rows of the two attention matrices: mean over queries, heads, images; NaN: no such rows


class Matching(list[LayerMatch]):
    """One row per converted layer, in order; as text it is a table."""

    def table(self) -> Table:
        table = Table(title="Converted layers, on the teacher's activations")
        table.add_column("layer", no_wrap=True)
        for name in ("relative squared error", "cosine of attention rows"):
            table.add_column(name, justify="right")
        for row in self:
            table.add_row(row.layer, f"{row.error:.3f}", f"{row.cosine:.3f}")
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(width=100, file=text).print(self.table())
        return text.getvalue()


@dataclass(frozen=True)
class Recorded:
    """What went through one softmax layer."""

    x: Tensor  # (B, N, dim)
    size: Size
    heads: Tensor  # (B, N, dim): what its output projection was given
    out: Tensor  # (B, N, dim)


@torch.no_grad()
def compare_attention(model: nn.Module, teacher: nn.Module, images: Tensor) -> Matching:
    """Compare each converted layer of `model` with the layer of `teacher` in its place, both in evaluation mode.

    Memory: the activations of all layers, and two N x N matrices per head for one layer at a time.
    """
    conversion: Any = getattr(model, "conversion", None)
    if conversion is None:
        raise InputError(f"expected a converted model, got a {type(model).__name__} as it was")
    _check_teacher(model, teacher, conversion.layers, images)
    found = Matching()
    for name, seen in watch(teacher.eval(), conversion.layers, images).items():
        new: Any = model.eval().get_submodule(name)
        error = relative_error(new(seen.x, seen.size), seen.out).item()
        found.append(LayerMatch(name, error, _cosine(new, teacher.get_submodule(name), seen)))
    return found


def _check_teacher(model: Any, teacher: Any, names: Sequence[str], images: Tensor) -> None:
    """Refuse a teacher that the model can't have been converted from, or that can't take the images."""
    softmax, give = softmax_layers(teacher), "give the model that it was converted from"
    for name in names:
        ours, theirs = model.get_submodule(name), softmax.get(name)
        if theirs is None:
            raise InputError(f"the teacher has no softmax attention {name}, where the model is converted: {give}")
        wide, expected = (_width(*pair) for pair in ((teacher, theirs), (model, ours)))
        if wide != expected:
            raise InputError(f"{name} has {wide} in the teacher, and {expected} in the converted model: {give}")
    fixed, given = fixed_size(teacher), tuple(images.shape[-2:])
    if fixed is not None and fixed != given:
        only, found = (" x ".join(map(str, size)) for size in (fixed, given))
        raise InputError(f"the teacher takes images of {only} pixels alone, and the model those of {found}: {give}")


def _width(model: Any, layer: Any) -> str:
    leading = getattr(model, "num_prefix_tokens", 0)
    return f"{layer.num_heads} heads, {layer.proj.weight.shape[1]} channels and {leading} leading tokens"


@torch.no_grad()
def watch(model: Any, names: Sequence[str], images: Tensor) -> dict[str, Recorded]:
    """One pass of a teacher, and what went through its layers of these names. Memory: four tensors per layer."""
    given: dict[str, tuple[Any, ...]] = {}
    heads: dict[str, Tensor] = {}
    out: dict[str, Tensor] = {}
    hooks = []
    for name in names:
        layer = model.get_submodule(name)
        hooks += [
            layer.register_forward_pre_hook(lambda _, inputs, name=name: given.update({name: inputs})),
            layer.proj.register_forward_pre_hook(lambda _, inputs, name=name: heads.update({name: inputs[0]})),
            layer.register_forward_hook(lambda _, inputs, output, name=name: out.update({name: output})),
        ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    size: Size = ()
    if isinstance(model, VisionTransformer):
        size = tuple(model.patch_embed.dynamic_feat_size(tuple(images.shape[-2:])))
    return {name: Recorded(given[name][0], tuple((*given[name], size)[1]), heads[name], out[name]) for name in names}


def relative_error(out: Tensor, target: Tensor, average: Callable[[Tensor], Tensor] = lambda value: value) -> Tensor:
    """|out - target|^2 over what a constant per channel leaves of the target: tokens (B, N, C) or maps (B, C, H, W).

    average: over processes that have a part of the batch each. The mean of their errors is that of the whole batch.
    """
    out, target = out.float(), target.float()
    kept = 1 if target.ndim == 4 else target.ndim - 1
    around = target - average(target.mean([axis for axis in range(target.ndim) if axis != kept], keepdim=True))
    return (out - target).square().sum() / average(around.square().sum()).clamp(min=_LEAST)


def _cosine(new: GridAttention, old: Any, seen: Recorded) -> float:
    if not isinstance(old, TokenAttention | GridAttention):  # PVT v2: its keys are those of a smaller image
        return float("nan")
    if isinstance(old, GridAttention):
        theirs = _matrix(old, seen)
    else:
        width = (3, old.num_heads, old.head_dim)
        q, k, _ = old.qkv(seen.x).unflatten(-1, width).permute(2, 0, 3, 1, 4).unbind(0)
        theirs = (q @ k.mT * old.scale).softmax(-1)
    return torch.cosine_similarity(_matrix(new, seen), theirs, dim=-1).mean().item()


def _matrix(layer: GridAttention, seen: Recorded) -> Tensor:
    """(B, heads, N, N): what the layer makes of values that are the columns of the identity."""
    q, k, v = layer.project(seen.x, seen.size)
    identity = torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
    return layer.mix(q, k, identity, seen.size)
