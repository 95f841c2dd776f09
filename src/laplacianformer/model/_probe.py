"""A small model in which nothing but the attention mixes tokens, to compare token mixers with.

In the pyramid, strided convolutions and the convolution beside each attention do most of the mixing, and one token
mixer does about as well as another. Here there is one grid of 8 x 8 patches, and no convolution in the blocks.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from timm.layers import to_2tuple, trunc_normal_
from torch import Tensor, nn

from laplacianformer.attention import GridAttention
from laplacianformer.model._blocks import init_weights
from laplacianformer.model.backbone import LaplacianFormer
from laplacianformer.ops._pooling import Size

_POSITION = "stages.0.embedding.position"


class Probe(LaplacianFormer):
    """A plain vision transformer: patches with learned positions, blocks of one width, LayerNorm, mean pooling, a head.

    Args:
        img_size: height and width of the images, multiples of the patch size; one number for square images.
        patch_size: height and width of a patch.
        depth, embed_dim, num_heads, mlp_ratio: of the blocks.
        attention: the token mixer, or a control, as in `LaplacianFormer`; its convolution is left out.
        attention_args: passed on to the token mixer. It has no rotary positions unless they are asked for.
        **others: of `LaplacianFormer`.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 32,
        patch_size: int = 4,
        depth: int = 3,
        embed_dim: int = 64,
        num_heads: int = 2,
        mlp_ratio: float = 2,
        attention: str | Callable[..., GridAttention] = "laplacian",
        attention_args: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(
            depths=(depth,),
            embed_dims=(embed_dim,),
            num_heads=(num_heads,),
            mlp_ratios=(mlp_ratio,),
            stem_stride=patch_size,
            attention=attention,
            attention_args={"rope": False, **(attention_args or {})},
            **others,
        )
        height, width = to_2tuple(img_size)
        if height % patch_size or width % patch_size:
            raise ValueError(f"img_size must be a multiple of patch_size={patch_size}, got {img_size}")
        stage: Any = self.stages[0]
        stage.embedding = _Patches(self.in_chans, embed_dim, patch_size, (height // patch_size, width // patch_size))
        for block in stage.blocks:
            block.attention.dwc = None

    def no_weight_decay(self) -> set[str]:
        return {_POSITION}


class _Patches(nn.Module):
    """A linear map of each patch plus a learned position: (B, C, H, W) -> tokens (B, N, dim) and their grid."""

    def __init__(self, in_chans: int, dim: int, patch_size: int, size: Size) -> None:
        super().__init__()
        self.stride, self.size = patch_size, size
        self.proj = nn.Conv2d(in_chans, dim, patch_size, patch_size)
        self.position = nn.Parameter(torch.empty(math.prod(size), dim))
        init_weights(self.proj, "proj")
        trunc_normal_(self.position, std=0.02)

    def forward(self, x: Tensor) -> tuple[Tensor, Size]:
        height, width = (self.stride * length for length in self.size)
        if x.shape[2:] != (height, width):
            raise ValueError(f"expected images of {height} x {width} pixels, got {x.shape[2]} x {x.shape[3]}")
        return self.proj(x).flatten(2).mT + self.position, self.size
