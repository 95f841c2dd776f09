"""LaplacianFormer: a pyramid vision transformer whose attention is linear in the number of pixels.

"LaplacianFormer: Rethinking Linear Attention with Laplacian Kernel", ICLR 2026. The named sizes are in sizes.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from laplacianformer.attention import ATTENTIONS
from laplacianformer.attention._controls import CONTROLS
from laplacianformer.attention._grid import GridAttention
from laplacianformer.attention._options import laplacian_layer
from laplacianformer.model._blocks import Block, PatchEmbedding, Stage, init_weights


class LaplacianFormer(nn.Module):
    """The backbone: four stages, LayerNorm, mean pooling, a linear head.

    Args:
        depths, embed_dims, num_heads, mlp_ratios: one number per stage.
        stem_kernel, stem_stride: of the first patch embedding; the others are 3 x 3 with stride 2.
        in_chans: channels of the image.
        num_classes: outputs of the head; 0 for none.
        global_pool: "avg", or "" for feature maps.
        attention: the token mixer: "laplacian", another of `ATTENTIONS` (docs/baselines.md), a control ("no-mixing" or
            "mean-over-queries"), or a callable (dim, num_heads, **attention_args).
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
            raise ValueError("depths, embed_dims, num_heads and mlp_ratios must have one number per stage each")
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
            init_weights(module, name)

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
        mask: Tensor | None = None,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Feature maps of the stages named by `indices` (the last n for an integer), and the final features.

        `mask` (B, H, W) is True where a pixel belongs to the image, for images padded to one size: features are then
        those of each image alone, and zeros beside it.
        """
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt must be 'NCHW', got {output_fmt!r}")
        wanted, last = feature_take_indices(len(self.stages), indices)
        maps = []
        x = self._checked(x)
        if mask is not None:
            x = x.masked_fill(~self._checked_mask(x, mask)[:, None], 0)
        for index, stage in enumerate(self.stages[: last + 1] if stop_early else self.stages):
            if mask is None:
                x = stage(x)
            else:  # a token counts if the pixel at its centre does
                mask = mask[:, :: stage.embedding.stride, :: stage.embedding.stride]
                x = stage(x, mask)
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

    def _checked_mask(self, x: Tensor, mask: Tensor) -> Tensor:
        if not isinstance(mask, Tensor):
            raise TypeError(f"mask must be a tensor of bool, (B, H, W), one per pixel, got {type(mask).__name__}")
        if mask.dtype != torch.bool or mask.shape != (x.shape[0], *x.shape[2:]):
            expected = (x.shape[0], *x.shape[2:])
            raise ValueError(f"mask must be bool, {expected}, one per pixel, got {mask.dtype}, {tuple(mask.shape)}")
        return mask

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
            init_weights(self.head, "head")

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
    factory, options = attention, arguments or {}
    if factory == "laplacian":
        factory, options = laplacian_layer(options)
    elif isinstance(factory, str):
        known = {**ATTENTIONS, **CONTROLS}
        if factory not in known:
            raise ValueError(f"attention must be one of {', '.join(known)} or a callable, got {attention!r}")
        factory = known[factory]
    mixer: Callable[..., GridAttention] = factory
    return lambda dim, heads: mixer(dim, heads, **options)
