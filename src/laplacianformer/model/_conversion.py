"""Another attention in place of softmax attention: in timm's vision transformers, PVT v2 and our own model.

Only attention layers are exchanged: the model stays an instance of its class, with everything that timm does with it.
`laplacianformer.convert` trains the new layers, and a weights file says which ones they are.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from timm.layers import Attention as TokenAttention
from timm.models.pvt_v2 import Attention as ReducedAttention
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from laplacianformer._util import settings
from laplacianformer._util.errors import InputError
from laplacianformer._util.limits import check_arguments, one_line, reason, shown
from laplacianformer.attention import ATTENTIONS, GridAttention, SoftmaxAttention
from laplacianformer.attention._controls import CONTROLS
from laplacianformer.attention._options import laplacian_layer
from laplacianformer.ops._pooling import Size

# What a model with such layers is told.
_REFUSED = {
    "WindowAttention": "it sees windows, not the image, and adds a bias for relative positions",
    "WindowMultiHeadAttention": "it sees windows, not the image, and adds a bias for relative positions",
    "AttentionRope": "it rotates queries and keys in a way of its own",
    "EvaAttention": "it rotates queries and keys in a way of its own",
    "DiffAttention": "it subtracts two softmax maps",
    "MultiheadAttention": "laplacianformer.nn.replace_attention exchanges it, without conversion",
}


@dataclass(frozen=True)
class Conversion:
    """Which attention stands in place of which softmax layers."""

    attention: str = "laplacian"  # one of `ATTENTIONS`, or of `CONTROLS`
    attention_args: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[str, ...] = ()  # names of modules


def described(model: nn.Module) -> dict[str, str]:
    """What a weights file says about the conversion of a model; nothing if there was none."""
    conversion = getattr(model, "conversion", None)
    return {"converted": json.dumps(asdict(conversion))} if isinstance(conversion, Conversion) else {}


def conversion_of(said: Any, what: str) -> Conversion:
    """What a weights file says about a conversion, if it can be used. `what` names it in messages."""
    keys = {"attention", "attention_args", "layers"}
    fits = isinstance(said, dict) and said.keys() == keys and isinstance(said["attention"], str)
    fits = fits and isinstance(said["attention_args"], dict) and isinstance(said["layers"], list)
    if not fits or not all(isinstance(name, str) for name in said["layers"]):
        raise InputError(f"{what} can't be used: {shown(said)}. Expected {', '.join(sorted(keys))}")
    check_arguments(said, what)
    if len(set(said["layers"])) < len(said["layers"]):
        raise InputError(f"{what} names a layer twice: {shown(said['layers'])}")
    return Conversion(said["attention"], said["attention_args"], tuple(said["layers"]))


class TokenGrid:
    """The grid of a vision transformer's tokens, which its blocks don't pass on: noted where the image is cut up."""

    size: Size = ()

    def note(self, embedding: Any, inputs: tuple[Tensor, ...]) -> None:
        """A hook before the patch embedding."""
        self.size = tuple(embedding.dynamic_feat_size(tuple(inputs[0].shape[-2:])))

    def tell(self, layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A hook before an attention layer: from what timm's blocks call it with to `attention(x, size)`."""
        if named.get("attn_mask") is not None or named.get("is_causal"):
            raise ValueError(
                "a converted model takes no attention mask and can't be causal: tokens see landmarks made of all tokens"
            )
        return (arguments if len(arguments) > 1 else (*arguments, self.size)), {}


def softmax_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that another attention can replace, by name, in order; an InputError says why there is none."""
    found = {name: module for name, module in model.named_modules() if _kind(module)}
    what = type(model).__name__
    if not found:
        others = {type(module).__name__ for module in model.modules() if "attention" in type(module).__name__.lower()}
        known = [f"{name}: {_REFUSED[name]}" for name in sorted(others) if name in _REFUSED]
        has = f" ({'; '.join(known) or 'it has ' + ', '.join(sorted(others))})" if others else ""
        raise InputError(
            f"a {what} has no softmax attention that can be converted{has}: expected a vision transformer "
            "(vit_*, deit*), a PVT v2, or a model of this package with attention='softmax'"
        )
    of_tokens = any(type(module) is TokenAttention for module in found.values())
    if of_tokens and not isinstance(model, VisionTransformer):
        raise InputError(f"a {what} can't be converted: expected timm's VisionTransformer around such attention layers")
    if of_tokens and not isinstance(model.patch_drop, nn.Identity):
        raise InputError(f"a {what} that drops patches (patch_drop_rate) has no grid of tokens: build it without")
    for name, module in found.items():
        if (why := _difference(module)) is not None:
            raise InputError(f"{name} of {what} can't be converted: {why}")
    return found


def _kind(module: nn.Module) -> bool:
    return type(module) in (TokenAttention, ReducedAttention) or isinstance(module, SoftmaxAttention)


def _difference(layer: Any) -> str | None:
    """What a layer computes beside softmax attention, or None."""
    if type(layer) is not TokenAttention:
        return None
    if not all(isinstance(norm, nn.Identity) for norm in (layer.q_norm, layer.k_norm)):
        return "it normalises queries and keys (qk_norm)"
    if not isinstance(layer.norm, nn.Identity) or layer.gate is not None:
        return "it normalises or gates its output (scale_norm, gated)"
    if not layer.qkv.in_features == layer.attn_dim == layer.proj.out_features:
        return "its heads are not dim / num_heads wide"
    return None


def exchange(model: nn.Module, conversion: Conversion) -> dict[str, GridAttention]:
    """Put new layers into the model, with random weights, and return them by name. The model says what it became
    (`model.conversion`)."""
    if hasattr(model, "conversion"):
        raise InputError(f"the {type(model).__name__} was converted already: convert the model that it was made from")
    softmax = softmax_layers(model)
    unknown = [name for name in conversion.layers if name not in softmax]
    if unknown or not conversion.layers:
        known = f"{next(iter(softmax))} to {next(reversed(softmax))}"
        raise InputError(f"no softmax attention layer {one_line(', '.join(unknown))!r}: the model has {known}")
    prefix = model.num_prefix_tokens if isinstance(model, VisionTransformer) else 0
    made = {name: _new_layer(name, softmax[name], prefix, conversion) for name in conversion.layers}
    grid = TokenGrid()
    if isinstance(model, VisionTransformer):
        model.patch_embed.register_forward_pre_hook(grid.note)
    for name, layer in made.items():
        if isinstance(model, VisionTransformer):
            layer.register_forward_pre_hook(grid.tell, with_kwargs=True)
        model.set_submodule(name, layer)
    model.conversion = conversion  # type: ignore[assignment]
    return made


def _new_layer(name: str, old: Any, prefix: int, conversion: Conversion) -> GridAttention:
    """A layer of the size of the old one, on its device and in its dtype."""
    if isinstance(old, SoftmaxAttention):
        shared = {"axes": old.axes, "prefix": old.prefix, "rope": old.rope, "qkv_bias": old.qkv.bias is not None}
    else:
        bias = (old.qkv if type(old) is TokenAttention else old.q).bias is not None
        shared = {"prefix": prefix, "rope": False, "qkv_bias": bias}
    shared["proj_drop"] = old.proj_drop.p
    factory, options = _mixer(conversion)
    try:
        layer = factory(old.proj.in_features, old.num_heads, **{**shared, **options})
    except (TypeError, ValueError) as error:
        given = shown(dict(conversion.attention_args))
        raise InputError(f"{name} can't be {conversion.attention} attention with {given}: {reason(error)}") from None
    if layer.tied != getattr(old, "tied", False):
        raise InputError(
            f"{name} can't be {conversion.attention} attention with tied={layer.tied}: the softmax layer has "
            f"tied={not layer.tied}"
        )
    if layer.qk_norm is not None:
        raise InputError(
            f"{name} can't be {conversion.attention} attention with qk_norm: softmax attention has no such norm, and "
            "the scales that a conversion folds into the projections would be without effect: leave qk_norm out"
        )
    if isinstance(old, SoftmaxAttention) and old.dwc is None:  # as in a probe
        layer.dwc = None
    return layer.to(old.proj.weight).train(old.training)


def _mixer(conversion: Conversion) -> tuple[type[GridAttention], dict[str, Any]]:
    known, options = {**ATTENTIONS, **CONTROLS}, dict(conversion.attention_args)
    if conversion.attention == "laplacian":
        return laplacian_layer(options)
    if conversion.attention not in known:
        raise InputError(f"attention must be one of {', '.join(known)}, got {shown(conversion.attention)}")
    return known[conversion.attention], options


@torch.no_grad()
def take_over(old: Any, new: GridAttention) -> None:
    """The projections of a softmax layer; a convolution that it doesn't have starts at zero."""
    if isinstance(old, SoftmaxAttention):
        new.load_state_dict({**old.state_dict(), **settings.entries(new.state_dict())}, strict=False)
        return
    parts = [old.qkv] if type(old) is TokenAttention else [old.q, old.kv]
    new.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
    if new.qkv.bias is not None:
        new.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
    new.proj.weight.copy_(old.proj.weight)
    new.proj.bias.copy_(old.proj.bias) if old.proj.bias is not None else new.proj.bias.zero_()
    new.dwc.weight.zero_()
    new.dwc.bias.zero_()
