"""The encoder of the published comparison on Long Range Arena, with any token mixer.

Chen, Zeng, Ji and Yang, "Skyformer", 2021, and Xiong et al., "Nystromformer", 2021: embedding and learned positions,
two pre-norm layers of width 64 with two heads and an MLP of 128, mean pooling, a head of two linear layers. Pairs are
encoded alike, and the head sees both, their product and their difference.

Shape suffixes: b batch, n tokens, c channels.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer.attention import ATTENTIONS, GridAttention, PerformerAttention, SkyformerAttention
from laplacianformer.attention._controls import CONTROLS
from laplacianformer.attention._landmarks import LandmarkAttention
from laplacianformer.attention._linear import linear


class SequenceEncoder(nn.Module):
    """Classifies sequences of tokens, or each of their tokens. Called as `encoder(tokens, mask)`.

    Args:
        vocabulary: number of different tokens.
        length: tokens of a sequence, at most.
        num_classes: outputs.
        pairs: sequences come in pairs.
        per_token: classify each token instead of the sequence.
        axes: of the grid of tokens: 1 for sequences, 2 for square images, row by row.
        attention: a name of `ATTENTIONS`, or a control. Those of `LaplacianFormer` have the convolution that all mixers
            have beside their attention: "no-mixing" adds to it the value of the token itself, "mean-over-queries" the
            mean of Laplacian attention over the queries. "local" is that convolution alone. "none" and "mean" have no
            convolution: a token gets its own value, or the mean of the values of all tokens.
        attention_args: passed on to the token mixer, e.g. {"gain": 8.0}.
        local: whether token mixers have their convolution; without it, attention alone mixes tokens.
        landmarks: landmarks or random features of the mixer, where it has either; None for its own default. With two
            axes a square number of landmarks.
        dim: width.
        depth: layers.
        num_heads: heads of the token mixer.
        mlp_dim: width inside the MLPs and the head.
        dropout: after the embedding, token mixers and linear layers of the MLPs.
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        num_classes: int,
        *,
        pairs: bool = False,
        per_token: bool = False,
        axes: int = 1,
        attention: str = "laplacian",
        attention_args: Mapping[str, Any] | None = None,
        local: bool = True,
        landmarks: int | None = 128,
        dim: int = 64,
        depth: int = 2,
        num_heads: int = 2,
        mlp_dim: int = 128,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if attention == "local" and not local:
            raise ValueError('attention="local" is the convolution alone: local=False would leave nothing of it')
        if axes not in (1, 2):
            raise ValueError(f"axes must be 1 or 2, got {axes}")
        if pairs and per_token:
            raise ValueError("pairs have one answer: expected pairs or per_token, got both")
        # What it is built with, for weights files.
        self.arguments: dict[str, Any] = {name: value for name, value in locals().items() if name in _ARGUMENTS}
        self.length, self.pairs, self.per_token, self.axes = length, pairs, per_token, axes
        self.embedding, self.positions = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)
        options = dict(attention_args or {})
        self.layers = nn.ModuleList(
            _Layer(_mixer(attention, dim, num_heads, axes, landmarks, options), dim, mlp_dim, dropout)
            for _ in range(depth)
        )
        for layer in self.layers:
            if not local and isinstance(layer.attention, GridAttention):
                layer.attention.dwc = None
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Sequential(
            nn.Linear(4 * dim if pairs else dim, mlp_dim), nn.ReLU(), nn.Linear(mlp_dim, num_classes)
        )

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """tokens: (B, N), or (B, 2, N) for pairs; mask: of the same shape, True where a token counts -> logits
        (B, num_classes), or (B, num_classes, N) of each token."""
        self._check(tokens, mask)
        if self.per_token:
            return self.head(self.features(tokens, mask)).mT
        if not self.pairs:
            return self.head(self.encode(tokens, mask))
        both = self.encode(tokens.flatten(0, 1), None if mask is None else mask.flatten(0, 1))
        first, second = both.unflatten(0, (-1, 2)).unbind(1)
        return self.head(torch.cat([first, second, first * second, first - second], dim=-1))

    def encode(self, tokens_bn: Tensor, mask_bn: Tensor | None = None) -> Tensor:
        """The mean over the tokens that count, (B, dim)."""
        return _mean(self.features(tokens_bn, mask_bn), mask_bn)[:, 0]

    def features(self, tokens_bn: Tensor, mask_bn: Tensor | None = None) -> Tensor:
        """What the head sees of each token, (B, N, dim)."""
        n = tokens_bn.shape[1]
        size = (n,) if self.axes == 1 else (math.isqrt(n), math.isqrt(n))
        x_bnc = self.dropout(self.embedding(tokens_bn) + self.positions.weight[:n])
        for layer in self.layers:
            x_bnc = layer(x_bnc, size, mask_bn)
        return self.norm(x_bnc)

    def _check(self, tokens: Tensor, mask: Tensor | None) -> None:
        shape = "(B, 2, N)" if self.pairs else "(B, N)"
        if tokens.ndim != 2 + self.pairs or (self.pairs and tokens.shape[1] != 2):
            raise ValueError(f"expected tokens of shape {shape}, got {tuple(tokens.shape)}")
        if not 1 <= tokens.shape[-1] <= self.length:
            raise ValueError(f"expected 1 to {self.length} tokens, got {tokens.shape[-1]}: cut them")
        if self.axes == 2 and math.isqrt(tokens.shape[-1]) ** 2 != tokens.shape[-1]:
            raise ValueError(f"expected the tokens of square images, got {tokens.shape[-1]}, which is no square number")
        if mask is not None and not isinstance(mask, Tensor):
            raise TypeError(f"expected a mask of booleans in a tensor, got {type(mask).__name__}")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != tokens.shape):
            raise ValueError(
                f"expected a mask of booleans of shape {tuple(tokens.shape)}, got {mask.dtype} {tuple(mask.shape)}"
            )

    def no_weight_decay(self) -> set[str]:
        """For timm's optimisers."""
        return {"embedding.weight", "positions.weight"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers for layer-wise learning rates, as timm's models state them."""
        last = (r"^norm\.", (99999,))  # timm's number for "in the group before"
        return {"stem": r"^(?:embedding|positions)\.", "blocks": [(r"^layers\.(\d+)", None), last]}


_ARGUMENTS = (
    *("vocabulary", "length", "num_classes", "pairs", "per_token", "axes", "attention", "attention_args", "local"),
    *("landmarks", "dim", "depth", "num_heads", "mlp_dim", "dropout"),
)


class _Mlp(nn.Sequential):
    """Its linear layers are computed by `ops.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = linear(layer, x)
        return x


class _Layer(nn.Module):
    """Pre-norm token mixer and MLP, each with a residual connection."""

    def __init__(self, attention: nn.Module, dim: int, mlp_dim: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention, self.dropout = nn.LayerNorm(dim), attention, nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = _Mlp(
            nn.Linear(dim, mlp_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp_dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x_bnc: Tensor, size: tuple[int, ...], mask_bn: Tensor | None) -> Tensor:
        mixed_bnc = self.attention(self.norm1(x_bnc), size, mask=mask_bn)
        x_bnc = x_bnc + self.dropout(mixed_bnc)
        return x_bnc + self.mlp(self.norm2(x_bnc))


# ---- token mixers ----


class _TokenByToken(nn.Module):
    """Values and output projection of an attention layer, token by token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value, self.proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x_bnc: Tensor, size: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
        return linear(self.proj, linear(self.value, x_bnc))


class _MeanMixing(_TokenByToken):
    """Every token gets the mean of the values of all tokens that count: attention that is the same for all queries."""

    def forward(self, x_bnc: Tensor, size: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
        return self.proj(_mean(linear(self.value, x_bnc), mask)).expand_as(x_bnc)


class _LocalMixing(GridAttention):
    """The convolution of the values without attention."""

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.zeros_like(v_bhnd)


_KINDS: dict[str, type[GridAttention]] = {**ATTENTIONS, **CONTROLS, "local": _LocalMixing}


def _mixer(name: str, dim: int, heads: int, axes: int, landmarks: int | None, options: dict[str, Any]) -> nn.Module:
    if name in ("none", "mean"):
        if options:
            raise ValueError(f"attention={name!r} has no attention_args, got {options}")
        return _TokenByToken(dim) if name == "none" else _MeanMixing(dim)
    if name not in _KINDS:
        raise ValueError(f"attention must be one of {', '.join([*_KINDS, 'none', 'mean'])}, got {name!r}")
    kind = _KINDS[name]
    counted: dict[str, Any] = {}
    if landmarks is not None and issubclass(kind, SkyformerAttention):
        counted = {"grid": max(1, landmarks // 2 if axes == 1 else math.isqrt(landmarks // 2))}  # queries, and keys
    elif landmarks is not None and issubclass(kind, LandmarkAttention):
        if axes == 2 and math.isqrt(landmarks) ** 2 != landmarks:
            raise ValueError(f"landmarks must be a square number for images, got {landmarks}")
        counted = {"grid": landmarks if axes == 1 else math.isqrt(landmarks)}
    elif landmarks is not None and issubclass(kind, PerformerAttention):
        counted = {"features": landmarks}
    # Positions are learned, and added to the embedding.
    return kind(dim, heads, axes=axes, **{"rope": False, **counted, **options})


def _mean(x_bnc: Tensor, mask_bn: Tensor | None) -> Tensor:
    """Over the tokens that count, (B, 1, dim); zeros where none does."""
    if mask_bn is None:
        return x_bnc.mean(1, keepdim=True)
    weights_bn1 = mask_bn[..., None].to(x_bnc.dtype)
    return (x_bnc * weights_bn1).sum(1, keepdim=True) / weights_bn1.sum(1, keepdim=True).clamp(min=1)
