"""The global branch of attention layers while a model runs: watched, or replaced to see what it is worth."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer.attention import GridAttention
from laplacianformer.attention._grid import mean_over_tokens
from laplacianformer.ops._pooling import Size

Branch = Literal["mean", "off"]
# From the branch, (B, heads, N, d), and the mask of the tokens that count, if there is one, to what replaces it.
Change = Callable[[Tensor, Tensor | None], Tensor]

_CHANGES: dict[str, Change] = {
    "mean": lambda mixed_bhnd, mask_bn: mean_over_tokens(mixed_bhnd, mask_bn).expand_as(mixed_bhnd),
    "off": lambda mixed_bhnd, mask_bn: torch.zeros_like(mixed_bhnd),
}


def attention_layers(model: nn.Module, names: Sequence[str] | None = None) -> dict[str, GridAttention]:
    """The attention layers of a model by name, in order; of all token mixers of the package.

    names: those to take; the name of a part, such as "stages.2", stands for all layers in it. None: all.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, GridAttention)}
    if not found:
        raise InputError(f"{type(model).__name__} has no attention of this package: there is nothing to replace")
    if names is None:
        return found
    for name in names:
        if not any(_inside(layer, name) for layer in found):
            raise InputError(f"there is no attention layer {name!r}; there are {', '.join(found)}")
    return {layer: module for layer, module in found.items() if any(_inside(layer, name) for name in names)}


def without_attention(
    model: nn.Module, branch: Branch = "mean", layers: Sequence[str] | None = None
) -> AbstractContextManager[dict[str, GridAttention]]:
    """A block in which the global branch of attention layers is replaced; the convolution beside it stays.

    Args:
        branch: "mean", its mean over the queries of each item, the same for every token; "off", zeros.
        layers: names of layers, or of parts of the model for all layers in them; None: all.

    The difference in accuracy is what attention is worth in the model. Any token mixer of the package will do.
    """
    if branch not in _CHANGES:
        raise InputError(f"the branch can be replaced by {' or '.join(_CHANGES)}, got {branch!r}")
    return _all_changed(attention_layers(model, layers), _CHANGES[branch])


@contextmanager
def changed(layer: GridAttention, change: Change) -> Iterator[None]:
    """A block in which `change` of the global branch of a layer takes its place."""
    outer, mix = vars(layer).get("mix"), layer.mix

    def changed_mix(q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        masked = () if mask is None else (mask,)  # mixers from elsewhere may not take a mask
        return change(mix(q_bhnd, k_bhnd, v_bhnd, size, *masked), mask)

    layer.mix = changed_mix  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.mix
        if outer is not None:  # of a block around this one
            layer.mix = outer  # type: ignore[method-assign]


@contextmanager
def _all_changed(layers: dict[str, GridAttention], change: Change) -> Iterator[dict[str, GridAttention]]:
    with ExitStack() as stack:
        for layer in layers.values():
            stack.enter_context(changed(layer, change))
        yield layers


def _inside(layer: str, part: str) -> bool:
    return f"{layer}.".startswith(f"{part}.")
