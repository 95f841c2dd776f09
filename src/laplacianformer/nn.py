"""Laplacian attention in models that were written with `torch.nn`."""

from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer.attention import LaplacianAttention
from laplacianformer.ops._tracing import is_traced

__all__ = ["LaplacianSelfAttention", "replace_attention"]


class LaplacianSelfAttention(nn.Module):
    """`LaplacianAttention` on sequences, called as `nn.MultiheadAttention` is: `attention(x, x, x, key_padding_mask)`.

    Only self-attention, with or without padding: there is no linear form of causal attention or of an attention mask
    here, and no attention weights are returned.

    Args:
        embed_dim: channels.
        num_heads: heads.
        batch_first: whether inputs are (B, N, embed_dim), as `nn.MultiheadAttention` has it, or (N, B, embed_dim).
        **options: of `LaplacianAttention`. Unless given, rope is off, because such models have positions of their own,
            and qk_norm is on: torch's projections are so large at the start that the kernel would be nearly 0.
    """

    # What `nn.TransformerEncoderLayer` looks at before it takes a path of its own around the attention.
    in_proj_bias = None
    _qkv_same_embed_dim = True

    def __init__(self, embed_dim: int, num_heads: int, *, batch_first: bool = False, **options: Any) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.attention = LaplacianAttention(embed_dim, num_heads, axes=1, **{"rope": False, "qk_norm": True, **options})

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """The output and None. `key_padding_mask` (B, N) is True, or -inf, where a token is padding."""
        if not (query is key and key is value):
            raise ValueError("LaplacianSelfAttention is self-attention: query, key and value must be one tensor")
        if attn_mask is not None or is_causal:
            raise ValueError(
                "LaplacianSelfAttention takes no attn_mask and can't be causal: every token sees landmarks made from "
                "all tokens. Keep softmax attention in such layers."
            )
        x = query if self.batch_first or query.ndim == 2 else query.transpose(0, 1)
        x = x[None] if query.ndim == 2 else x
        mask = None
        if key_padding_mask is not None:
            mask = _counted(key_padding_mask)
            if mask.shape != (x.shape[:2] if query.ndim == 3 else x.shape[1:2]):
                what = f"(B, N) of {tuple(x.shape[:2])}" if query.ndim == 3 else f"(N,) of {x.shape[1]}"
                raise ValueError(f"key_padding_mask must be {what} tokens, got {tuple(mask.shape)}")
            mask = mask.reshape(x.shape[:2])
        out = self.attention(x, (x.shape[1] - self.attention.prefix,), mask)
        if query.ndim == 2:
            return out[0], None
        return out if self.batch_first else out.transpose(0, 1), None


def replace_attention(model: nn.Module, **options: Any) -> nn.Module:
    """Put Laplacian attention in place of every `nn.MultiheadAttention` of an encoder, and return the model.

    The projections are taken over and the convolution starts at zero; the model has to be trained, for the new
    attention computes something else. Dropout of attention weights has no counterpart here and is left out.

    Args:
        model: changed in place. Any module with self-attention, such as `nn.TransformerEncoder`.
        **options: of `LaplacianAttention`, for example grid=128 for 128 landmarks. Unless given, rope is off and
            qk_norm is on, as in `LaplacianSelfAttention`.
    """
    modules = model.named_modules(remove_duplicate=False)  # a layer may have several names
    found = [(name, module) for name, module in modules if isinstance(module, nn.MultiheadAttention)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no nn.MultiheadAttention")
    for name, module in model.named_modules():
        if isinstance(module, (nn.TransformerDecoderLayer, nn.Transformer)):
            what = name or type(module).__name__
            raise ValueError(f"{what} is a decoder, with causal and cross attention: only encoders can change")
    made: dict[nn.Module, LaplacianSelfAttention] = {}
    for name, module in found:  # all of them before anything changes
        if module not in made:
            made[module] = _like(name, module, options)
    for name, module in found:
        if not name:
            return made[module]
        model.set_submodule(name, made[module])
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):  # its nested tensors are for its own attention
            module.enable_nested_tensor = module.use_nested_tensor = False
    return model


def _counted(padding: Tensor) -> Tensor:
    """The mask of tokens that count from one of padding: bool, or 0 and -inf as `nn.TransformerEncoderLayer` has it."""
    if padding.dtype == torch.bool:
        return ~padding
    # A graph can't raise: there, a key with a weight is padding.
    if not is_traced() and not ((padding == 0) | (padding == -torch.inf)).all():
        raise ValueError("key_padding_mask must be bool, or a tensor of 0 and -inf: keys can't have weights here")
    return padding == 0


def _like(name: str, old: nn.MultiheadAttention, options: dict[str, Any]) -> LaplacianSelfAttention:
    """The new layer with the weights of the old one."""
    if not old._qkv_same_embed_dim:
        raise ValueError(f"{name}: keys or values have another width than queries: this is cross attention")
    if old.bias_k is not None or old.add_zero_attn:
        raise ValueError(f"{name}: add_bias_kv and add_zero_attn have no counterpart in Laplacian attention")
    bias = old.in_proj_bias is not None
    new = LaplacianSelfAttention(
        old.embed_dim, old.num_heads, batch_first=old.batch_first, **{"qkv_bias": bias, **options}
    )
    inner, output = new.attention, old.out_proj
    new.to(old.in_proj_weight).train(old.training)
    with torch.no_grad():
        inner.qkv.weight.copy_(old.in_proj_weight)
        if bias:
            inner.qkv.bias.copy_(old.in_proj_bias)
        inner.proj.weight.copy_(output.weight)
        inner.proj.bias.copy_(output.bias) if output.bias is not None else inner.proj.bias.zero_()
        inner.dwc.weight.zero_()
        inner.dwc.bias.zero_()
    return new
