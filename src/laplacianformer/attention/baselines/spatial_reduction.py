"""Spatial-reduction attention: Wang, Xie, Li, Fan, Song, Liang, Lu, Luo and Shao, "Pyramid Vision
Transformer", 2021.

    R = LayerNorm(conv(X))     K, V = projections of R        out = softmax(Q K' / sqrt(d)) V

The convolution has a kernel and a stride of `ratio` tokens, so that keys and values are ratio^2 times fewer: 8, 4, 2
and 1 in the stages of the paper, which is 7 x 7 of them everywhere at 224 pixels. O(N^2 d / ratio^2). With ratio=1
there is no convolution, and it is softmax attention.

A grid that is not a multiple of `ratio` is padded with zeros. A cell counts if one of its tokens does. Leading tokens
are keys by LayerNorm alone. Keys are rotated at the centres of their cells.

Shape suffixes: b batch, h heads, n tokens, r tokens of R, d head width, c channels.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer import ops
from laplacianformer.attention._grid import CONVOLUTIONS, GridAttention, allowed, check_count
from laplacianformer.attention._rope import rotation, with_prefix
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import accumulation_dtype

_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


class SpatialReductionAttention(GridAttention):
    """proj(softmax(q k' / sqrt(d)) v + DWC(v)) with keys and values of the reduced tokens. See `GridAttention`.

    Args:
        dim: channels.
        num_heads: heads.
        ratio: tokens per key along each axis. A number, or one for each width of a model's stages, as in
            {64: 8, 128: 4, 320: 2, 512: 1}.
        **shared: axes, prefix, rope, tied, qkv_bias, proj_drop.
    """

    mixer = "spatial-reduction"

    def __init__(self, dim: int, num_heads: int, *, ratio: int | Mapping[int | str, int] = 1, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        if isinstance(ratio, Mapping):
            by_width = {int(width): each for width, each in ratio.items()}  # keys in JSON are text
            if dim not in by_width:
                raise ValueError(f"{type(self).__name__}: ratio must have a number for width {dim}, got {dict(ratio)}")
            ratio = by_width[dim]
        check_count(self, ratio=ratio)
        self.ratio = ratio
        if ratio > 1:
            self.reduction = CONVOLUTIONS[self.axes](dim, dim, ratio, stride=ratio)
            self.reduction_norm = nn.LayerNorm(dim)

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "ratio": self.ratio}

    def forward(self, x: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        if self.ratio == 1:
            return super().forward(x, size, mask)
        mask = self.checked_mask(x, mask)
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
        q_bhnd, _, v_bhnd = super().project(x, size)
        if mask is not None:
            v_bhnd = v_bhnd.masked_fill(~mask[:, None, :, None], 0)
        mixed_bhnd = self.mix(q_bhnd, *self.reduced(x, size), size, *(() if mask is None else (mask,)))
        out = self.proj_drop(self.proj(self.local(v_bhnd, size) + mixed_bhnd.transpose(1, 2).flatten(2)))
        return out if mask is None else out.masked_fill(~mask[..., None], 0)

    def project(self, x: Tensor, size: Size) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of all tokens, keys and values of the reduced ones."""
        q_bhnd, k_bhnd, v_bhnd = super().project(x, size)
        return (q_bhnd, k_bhnd, v_bhnd) if self.ratio == 1 else (q_bhnd, *self.reduced(x, size))

    def reduced(self, x_bnc: Tensor, size: Size) -> tuple[Tensor, Tensor]:
        """Keys and values of R, (B, heads, r, d) each."""
        convolved = self.reduction(self.filled(x_bnc[:, self.prefix :].unflatten(1, size).movedim(-1, 1)))
        r_brc = torch.cat([x_bnc[:, : self.prefix], convolved.flatten(2).mT.to(x_bnc.dtype)], dim=1)
        _, k_bhrd, v_bhrd = super().project(self.reduction_norm(r_brc), tuple(convolved.shape[2:]))
        return k_bhrd, v_bhrd

    def filled(self, grid: Tensor) -> Tensor:
        """A grid (B, C, *size) with zeros behind it, up to multiples of the ratio."""
        amounts = [amount for length in reversed(grid.shape[2:]) for amount in (0, -length % self.ratio)]
        return F.pad(grid, amounts)

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        counted = mask if mask is None or self.ratio == 1 else self.reduced_mask(mask, size)
        q_bhnd, k_bhnd = self.rotate(q_bhnd, size), self.rotate_keys(k_bhnd, size)
        return F.scaled_dot_product_attention(q_bhnd, k_bhnd, v_bhnd, attn_mask=allowed(counted))

    def reduced_mask(self, mask_bn: Tensor, size: Size) -> Tensor:
        on_grid = self.filled(mask_bn[:, self.prefix :].unflatten(1, size)[:, None].float())
        cells = _POOL[self.axes](on_grid, self.ratio).flatten(1) > 0
        return torch.cat([mask_bn[:, : self.prefix], cells], dim=1)

    def rotate_keys(self, k_bhrd: Tensor, size: Size) -> Tensor:
        """At the centres of the cells, which do not depend on what is behind them."""
        if not self.rope or self.ratio == 1:
            return self.rotate(k_bhrd, size)
        dtype = accumulation_dtype(k_bhrd.dtype)
        cells = [torch.arange(-(-length // self.ratio), device=k_bhrd.device, dtype=dtype) for length in size]
        centres = [self.ratio * cell + (self.ratio - 1) / 2 for cell in cells]
        return ops.rotate(k_bhrd, *with_prefix(*rotation(centres, self.head_dim), self.prefix))

    def extra_repr(self) -> str:
        return f"ratio={self.ratio}"
