"""LaplacianFormer: a pyramid vision transformer whose attention is linear in the number of pixels.

"LaplacianFormer: Rethinking Linear Attention with Laplacian Kernel", ICLR 2026. The sizes are solved from the
paper's parameters and FLOPs (docs/paper.md). Registered with timm: `import laplacianformer`, then
`timm.create_model("laplacianformer_tiny")`.

Shape suffixes: b batch, n tokens, c channels.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from timm.layers import DropPath, Mlp, trunc_normal_
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from laplacianformer.attention import ATTENTIONS
from laplacianformer.attention.grid import GridAttention
from laplacianformer.attention.landmarks import Size
from laplacianformer.attention.whitening import paused_updates
from laplacianformer.shipped import as_pretrained


class PatchEmbedding(nn.Module):
    """An overlapping strided convolution and a LayerNorm: (B, C, H, W) -> tokens (B, N, dim) and their grid."""

    def __init__(self, in_chans: int, dim: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, kernel_size, stride, padding=kernel_size // 2)
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> tuple[Tensor, Size]:
        x = self.proj(x)
        return self.norm(x.flatten(2).transpose(1, 2)), (x.shape[2], x.shape[3])


class Block(nn.Module):
    """Pre-norm attention and MLP, each with a residual connection."""

    def __init__(self, attention: GridAttention, mlp_ratio: float, proj_drop: float, drop_path: float) -> None:
        super().__init__()
        dim = attention.dim
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = attention
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x_bnc: Tensor, size: Size) -> Tensor:
        x_bnc = x_bnc + self.drop_path1(self.attention(self.norm1(x_bnc), size))
        return x_bnc + self.drop_path2(self.mlp(self.norm2(x_bnc)))


class Stage(nn.Module):
    """Patch embedding, then blocks at one resolution: (B, C, H, W) -> (B, dim, H / stride, W / stride)."""

    def __init__(self, embedding: PatchEmbedding, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        x_bnc, size = self.embedding(x)
        for block in self.blocks:
            x_bnc = _checkpointed(block, x_bnc, size) if self.grad_checkpointing else block(x_bnc, size)
        return x_bnc.unflatten(1, size).permute(0, 3, 1, 2)


def _checkpointed(block: nn.Module, x_bnc: Tensor, size: Size) -> Tensor:
    """Recomputing a block must not count its batch twice in the running whitening statistics."""
    if torch.compiler.is_compiling():  # a compiled graph updates its buffers once
        return checkpoint(block, x_bnc, size, use_reentrant=False)
    contexts = nullcontext(), paused_updates(block)
    return checkpoint(block, x_bnc, size, use_reentrant=False, context_fn=lambda: contexts)


class LaplacianFormer(nn.Module):
    """The backbone: four stages, LayerNorm, mean pooling, a linear head.

    Args:
        depths, embed_dims, num_heads, mlp_ratios: one number a stage.
        stem_kernel, stem_stride: of the first patch embedding; the others are 3 x 3 with stride 2.
        in_chans: channels of the image.
        num_classes: outputs of the head; 0 for none.
        global_pool: "avg", or "" for feature maps.
        attention: the token mixer: "laplacian", another of `ATTENTIONS` (docs/attention.md), or a callable
            (dim, num_heads, **attention_args).
        attention_args: passed on to the token mixer, e.g. {"grid": 14}.
        drop_rate: dropout before the head.
        proj_drop_rate: dropout after projections.
        drop_path_rate: stochastic depth of the last block, growing linearly from 0.
    """

    global_pool: str

    def __init__(
        self,
        *,
        depths: Sequence[int] = (2, 2, 2, 2),
        embed_dims: Sequence[int] = (64, 128, 320, 512),
        num_heads: Sequence[int] = (2, 4, 10, 16),
        mlp_ratios: Sequence[float] = (8, 8, 4, 4),
        stem_kernel: int = 7,
        stem_stride: int = 4,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        attention: str | Callable[..., GridAttention] = "laplacian",
        attention_args: dict[str, Any] | None = None,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        lengths = {len(depths), len(embed_dims), len(num_heads), len(mlp_ratios)}
        if len(lengths) != 1:
            raise ValueError("depths, embed_dims, num_heads and mlp_ratios must have one number a stage each")
        self.arguments: dict[str, Any] = {}  # what timm.create_model was given beside the name, for weights files
        self.in_chans = in_chans
        self.num_features = self.head_hidden_size = embed_dims[-1]
        mixer = _token_mixer(attention, attention_args)

        self.stages = nn.Sequential()
        self.feature_info: list[dict[str, Any]] = []
        channels, reduction = in_chans, stem_stride
        drop_paths = (drop_path_rate * block / max(1, sum(depths) - 1) for block in range(sum(depths)))
        for index, (depth, dim, heads, ratio) in enumerate(zip(depths, embed_dims, num_heads, mlp_ratios, strict=True)):
            kernel_size, stride = (stem_kernel, stem_stride) if index == 0 else (3, 2)
            blocks = [Block(mixer(dim, heads), ratio, proj_drop_rate, next(drop_paths)) for _ in range(depth)]
            self.stages.append(Stage(PatchEmbedding(channels, dim, kernel_size, stride), blocks))
            self.feature_info.append({"num_chs": dim, "reduction": reduction, "module": f"stages.{index}"})
            channels, reduction = dim, reduction * 2

        self.norm: nn.Module = nn.LayerNorm(self.num_features, eps=1e-6)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.init_weights()

    def init_weights(self) -> None:
        for name, module in self.named_modules():
            _init_weights(module, name)

    # ---- forward ----

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, in_chans, H, W) -> (B, num_features, H / 32, W / 32), normalised."""
        return self._norm_maps(self.stages(self._checked(x)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and classify; `pre_logits` stops before the linear layer."""
        if self.global_pool == "avg":
            x = x.mean((2, 3))
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Feature maps of the stages named by `indices` (the last n for an integer), and the final features."""
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt must be 'NCHW', got {output_fmt!r}")
        wanted, last = feature_take_indices(len(self.stages), indices)
        maps = []
        x = self._checked(x)
        for index, stage in enumerate(self.stages[: last + 1] if stop_early else self.stages):
            x = stage(x)
            if index in wanted:
                maps.append(self._norm_maps(x) if norm and index == len(self.stages) - 1 else x)
        if intermediates_only:
            return maps
        stopped = stop_early and last < len(self.stages) - 1  # the norm is that of the last stage
        return x if stopped else self._norm_maps(x), maps

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what `forward_intermediates` with these indices doesn't need."""
        wanted, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return wanted

    def _norm_maps(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def _checked(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.in_chans:
            raise ValueError(f"expected images of shape (B, {self.in_chans}, H, W), got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"expected floating-point images, got {x.dtype}: scale them to 0..1 and normalise first")
        if x.shape[2] < 1 or x.shape[3] < 1:
            raise ValueError(f"expected images of at least one pixel, got {tuple(x.shape)}")
        return x

    # ---- the rest of the timm contract ----

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        pool = self.global_pool if global_pool is None else global_pool
        if pool not in ("avg", ""):
            raise ValueError(f"global_pool must be 'avg' or '', got {pool!r}")
        if num_classes > 0 and pool == "":
            raise ValueError(f"global_pool='' gives feature maps: pass num_classes=0 with it, not {num_classes}")
        self.num_classes, self.global_pool = num_classes, pool
        like = next(self.parameters())
        self.head: nn.Module = nn.Identity()
        if num_classes > 0:
            self.head = nn.Linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
            _init_weights(self.head, "head")

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for module in self.modules():
            if isinstance(module, Stage):
                module.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """One-dimensional parameters (norms, biases, gains) are exempt by timm's own rule."""
        return set()

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers for layer-wise learning rates: by stage if coarse, else by block."""
        by_stage: list[Any] = [(r"^stages\.(\d+)", None)]
        by_block: list[Any] = [(r"^stages\.(\d+)\.embedding", (0,)), (r"^stages\.(\d+)\.blocks\.(\d+)", None)]
        last = (r"^norm\.", (99999,))  # timm's number for "in the group before"
        return {"stem": r"^stages\.0\.embedding", "blocks": [*(by_stage if coarse else by_block), last]}


def _token_mixer(
    attention: str | Callable[..., GridAttention], arguments: dict[str, Any] | None
) -> Callable[[int, int], GridAttention]:
    if isinstance(attention, str):
        if attention not in ATTENTIONS:
            raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)} or a callable, got {attention!r}")
        attention = ATTENTIONS[attention]
    factory, options = attention, arguments or {}
    return lambda dim, heads: factory(dim, heads, **options)


def _init_weights(module: nn.Module, name: str) -> None:
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d) and not name.endswith("landmark_filter"):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2.0 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _create(name: str, pretrained: bool, arguments: dict[str, Any], **size: Any) -> nn.Module:
    model: nn.Module = build_model_with_cfg(
        LaplacianFormer,
        name,
        pretrained,
        feature_cfg={"out_indices": (0, 1, 2, 3), "feature_cls": "getter"},
        **{**size, **arguments},
    )
    if isinstance(model, LaplacianFormer):
        timms_own = {"pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}
        model.arguments = {key: value for key, value in arguments.items() if key not in timms_own}
    return model


def _cfg(**overrides: Any) -> dict[str, Any]:
    return {
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "fixed_input_size": False,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "first_conv": "stages.0.embedding.proj",
        "classifier": "head",
        "license": "apache-2.0",
        **overrides,
    }


default_cfgs = generate_default_cfgs(
    {
        "laplacianformer_nano": _cfg(input_size=(3, 32, 32), pool_size=(2, 2), crop_pct=1.0),
        "laplacianformer_tiny": _cfg(),
        "laplacianformer_small": _cfg(),
        "laplacianformer_medium": _cfg(),
        "laplacianformer_large": _cfg(),
        "laplacianformer_huge": _cfg(),
    }
)


@register_model
def laplacianformer_nano(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """1.3 M parameters, for images of 28 to 64 pixels and for small devices: the stem halves, not quarters.

    Pretrained on CIFAR-10, where the package comes with the weights.
    """
    kwargs = as_pretrained(kwargs) if pretrained else kwargs
    widths = {"embed_dims": (32, 64, 128, 160), "num_heads": (1, 2, 4, 5), "stem_kernel": 3, "stem_stride": 2}
    return _create("laplacianformer_nano", pretrained, kwargs, depths=(2, 2, 2, 1), **widths)


@register_model
def laplacianformer_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return _create("laplacianformer_tiny", pretrained, kwargs, depths=(2, 2, 2, 2))


@register_model
def laplacianformer_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return _create("laplacianformer_small", pretrained, kwargs, depths=(2, 4, 10, 3))


@register_model
def laplacianformer_medium(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return _create("laplacianformer_medium", pretrained, kwargs, depths=(2, 4, 19, 6))


@register_model
def laplacianformer_large(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return _create("laplacianformer_large", pretrained, kwargs, depths=(2, 6, 32, 6))


@register_model
def laplacianformer_huge(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return _create("laplacianformer_huge", pretrained, kwargs, depths=(4, 4, 50, 4))
