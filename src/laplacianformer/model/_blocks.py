"""What a stage of the pyramid is made of: patch embedding, blocks, and recomputation of blocks in backward.

Shape suffixes: b batch, n tokens, c channels.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from timm.layers import DropPath, trunc_normal_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from laplacianformer.attention._grid import GridAttention
from laplacianformer.attention._whitening import paused_updates
from laplacianformer.model._mlp import FusedMlp
from laplacianformer.ops._backend import forced, use_backend
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._tracing import is_compiled, is_traced


class PatchEmbedding(nn.Module):
    """An overlapping strided convolution and a LayerNorm: (B, C, H, W) -> tokens (B, N, dim) and their grid."""

    def __init__(self, in_chans: int, dim: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.proj = nn.Conv2d(in_chans, dim, kernel_size, stride, padding=kernel_size // 2)
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> tuple[Tensor, Size]:
        if x.is_cpu and not is_traced():  # the convolution then writes tokens one after the other, as they are read
            x = x.contiguous(memory_format=torch.channels_last)
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
        self.mlp = FusedMlp(dim, int(dim * mlp_ratio), proj_drop)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x_bnc: Tensor, size: Size, mask_bn: Tensor | None = None) -> Tensor:
        masked = () if mask_bn is None else (mask_bn,)
        x_bnc = x_bnc + self.drop_path1(self.attention(self.norm1(x_bnc), size, *masked))
        return x_bnc + self.drop_path2(self.mlp(self.norm2(x_bnc)))


class Stage(nn.Module):
    """Patch embedding, then blocks at one resolution: (B, C, H, W) -> (B, dim, H / stride, W / stride).

    With a mask of the tokens that count, (B, H / stride, W / stride), the others become zeros: to the convolutions of
    the next stage they are what lies beyond the border of an image.
    """

    def __init__(self, embedding: PatchEmbedding, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x_bnc, size = self.embedding(x)
        masked = () if mask is None else (mask.flatten(1),)
        for block in self.blocks:
            run = _checkpointed(block) if self.grad_checkpointing else block
            x_bnc = run(x_bnc, size, *masked)
        if mask is not None:
            x_bnc = x_bnc.masked_fill(~mask.flatten(1)[..., None], 0)
        return x_bnc.unflatten(1, size).permute(0, 3, 1, 2)


def _checkpointed(block: nn.Module) -> Callable[..., Tensor]:
    if is_compiled():  # a compiled graph updates its buffers once, and knows its backends
        return partial(checkpoint, block, use_reentrant=False)
    contexts = nullcontext(), _Recomputation(block)
    return partial(checkpoint, block, use_reentrant=False, context_fn=lambda: contexts)


class _Recomputation(AbstractContextManager[None]):
    """Recomputing a block must not count its batch twice in the running whitening statistics, and takes place on the
    backend of its forward call. It may be entered again, by a second backward pass."""

    def __init__(self, block: nn.Module) -> None:
        self.block, self.backend, self.entered = block, forced(), ExitStack()

    def __enter__(self) -> None:
        self.entered.enter_context(paused_updates(self.block))
        self.entered.enter_context(use_backend(self.backend))

    def __exit__(self, *error: Any) -> None:
        self.entered.close()


def init_weights(module: nn.Module, name: str) -> None:
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d) and not name.endswith("landmark_filter"):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2.0 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
