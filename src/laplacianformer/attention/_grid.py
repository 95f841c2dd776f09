"""What every token mixer on a grid of one to three axes shares: projections, positions, masks, the local branch.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width, c channels (h * d).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer import ops
from laplacianformer.attention._linear import linear
from laplacianformer.attention._qk_norm import QueryKeyNorm
from laplacianformer.attention._rope import cell_rotation
from laplacianformer.attention._state import SettingsInState
from laplacianformer.attention._volumes import convolve_volume
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import accumulation_dtype
from laplacianformer.ops._tracing import is_traced

# By the number of axes.
CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class GridAttention(SettingsInState):
    """Multi-head attention on a grid of tokens: proj(mix(q, k, v) + DWC(v)). Subclasses define `mix`.

    Args:
        dim: channels.
        num_heads: heads; each is dim / num_heads wide.
        axes: of the grid: 1 for sequences, 2 for images, 3 for videos and volumes.
        prefix: leading tokens that are not on the grid, such as a class token: they have no position, and no
            convolution reaches them.
        rope: rotate queries and keys by their position on the grid (needs an even head width: for images a multiple of
            4, for volumes at least 6).
        tied: one projection for queries and keys.
        qkv_bias: bias of the projections of queries, keys and values.
        proj_drop: dropout after the output projection.
    """

    mixer: str = ""  # its name in states: weights of one mixer do not fit another; empty: not compared

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        axes: int = 2,
        prefix: int = 0,
        rope: bool = True,
        tied: bool = False,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if dim < 1 or num_heads < 1 or dim % num_heads:
            raise ValueError(f"dim must be a positive multiple of num_heads, got dim={dim}, num_heads={num_heads}")
        if type(axes) is not int or axes not in CONVOLUTIONS:
            raise ValueError(f"{type(self).__name__}: axes must be 1, 2 or 3, got {axes!r}")
        if type(prefix) is not int or prefix < 0:
            raise ValueError(f"{type(self).__name__}: prefix must be an integer of at least 0, got {prefix!r}")
        self.dim, self.num_heads, self.head_dim = dim, num_heads, dim // num_heads
        self.axes, self.prefix = axes, prefix
        multiple = 4 if axes == 2 else 2
        if rope and (self.head_dim % multiple or self.head_dim < 2 * axes):
            least = " and of at least 6" if axes == 3 else ""
            raise ValueError(
                f"rope needs a head width divisible by {multiple}{least}, got {self.head_dim}: pass rope=False"
            )
        self.rope, self.tied = rope, tied
        self.qk_norm: QueryKeyNorm | None = None  # for mixers that have it

        self.qkv = nn.Linear(dim, (2 if tied else 3) * dim, bias=qkv_bias)
        # Probes, in which attention alone mixes tokens, have none.
        self.dwc: Any = CONVOLUTIONS[axes](dim, dim, 3, padding=1, groups=dim)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def numbers(self) -> dict[str, Any]:
        named = {"attention": self.mixer} if self.mixer else {}
        return {**named, "num_heads": self.num_heads, "rope": self.rope, "prefix": self.prefix}

    def forward(self, x: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        """The output for each token; zeros where the mask is False.

        Args:
            x: (B, prefix + N, dim): leading tokens, then those of the grid in row-major order.
            size: (N,), (H, W) or (T, H, W).
            mask: (B, prefix + N) bool, True where a token counts. The others are neither keys nor part of a landmark,
                and an item's output does not depend on how much padding follows it.
        """
        mask = self.checked_mask(x, mask)
        if mask is not None:  # not even a NaN of the padding may reach a gradient
            x = x.masked_fill(~mask[..., None], 0)
        q_bhnd, k_bhnd, v_bhnd = self.project(x, size)
        if mask is not None:
            v_bhnd = v_bhnd.masked_fill(~mask[:, None, :, None], 0)
        masked = () if mask is None else (mask,)  # mixers from elsewhere may not take a mask
        mixed_bnhd = self.mix(q_bhnd, k_bhnd, v_bhnd, size, *masked).transpose(1, 2).to(v_bhnd.dtype)
        local_bnhd = self.local(v_bhnd, size).unflatten(2, (self.num_heads, self.head_dim))
        # In this order: the sum takes the layout of the first, and flattening it copies nothing.
        out = self.proj_drop(linear(self.proj, (local_bnhd + mixed_bnhd).flatten(2)))
        return out if mask is None else out.masked_fill(~mask[..., None], 0)

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        """The global branch: (B, heads, N, d) each, positions not yet applied -> (B, heads, N, d)."""
        raise TypeError(f"{type(self).__name__} must define mix")

    def project(self, x: Tensor, size: Size) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, heads, N, d) each: views of one projection."""
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise ValueError(f"expected tokens of shape (B, N, {self.dim}), got {tuple(x.shape)}")
        if not isinstance(size, Sequence) or not all(isinstance(length, int | torch.SymInt) for length in size):
            raise TypeError(f"size must be {self.axes} integers, the lengths of the grid, got {size!r}")
        if len(size) != self.axes:
            raise ValueError(f"size {tuple(size)} has {len(size)} axes, this layer has axes={self.axes}")
        if min(size) < 1 or x.shape[1] != self.prefix + math.prod(size):
            raise ValueError(self._refused(x.shape[1], size))
        parts = linear(self.qkv, x).unflatten(-1, (-1, self.num_heads, self.head_dim))
        # Not by index: the gradient would be padded with zeros three times. Before the transpose: the gradients are
        # then put together in the order of the projection, in one copy.
        q_bhnd, *rest = (part.transpose(1, 2) for part in parts.unbind(2))
        k_bhnd, v_bhnd = (q_bhnd, *rest) if self.tied else rest
        return (q_bhnd, k_bhnd, v_bhnd) if self.qk_norm is None else (*self.qk_norm(q_bhnd, k_bhnd), v_bhnd)

    def _refused(self, tokens: int, size: Size) -> str:
        """Why these tokens are not those of the grid."""
        if tokens < self.prefix:
            return f"expected prefix={self.prefix} leading tokens and a grid of {tuple(size)}, got {tokens} tokens"
        before = f" after {self.prefix} leading ones (prefix)" if self.prefix else ""
        lengths = {1: "N", 2: "H * W", 3: "T * H * W"}[self.axes]
        return (
            f"size {tuple(size)} does not hold {tokens - self.prefix} tokens{before}: "
            f"expected {lengths} of them, no length below 1"
        )

    def checked_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """The mask of these tokens, or None if all of them count; not checked on a GPU, which would have to wait."""
        if mask is None:
            return None
        if not isinstance(mask, Tensor):
            raise TypeError(f"mask must be a tensor, got {type(mask).__name__}")
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be bool, True where a token counts, got {mask.dtype}")
        if mask.shape != x.shape[:2]:
            raise ValueError(f"mask must be {tuple(x.shape[:2])}, one per token, got {tuple(mask.shape)}")
        if mask.device != x.device:
            raise ValueError(f"mask must be on the device of the tokens, {x.device}, got {mask.device}")
        if is_traced() or not mask.is_cpu:
            return mask
        return None if bool(mask.all()) else mask

    def local(self, v_bhnd: Tensor, size: Size) -> Tensor:
        """The local branch: a depth-wise convolution of the values on the grid, (B, N, dim); zeros before the grid."""
        tokens_bnc = v_bhnd.transpose(1, 2).flatten(2)
        if self.dwc is None:
            return torch.zeros_like(tokens_bnc)
        convolved = self.on_grid(self.dwc, tokens_bnc[:, self.prefix :], size)
        if not self.prefix:
            return convolved
        return torch.cat([torch.zeros_like(tokens_bnc[:, : self.prefix]), convolved], dim=1)

    def on_grid(self, convolution: Any, tokens_bnc: Tensor, size: Size) -> Tensor:
        """A depth-wise convolution of tokens on the grid, which sees channels first: (B, N, dim) -> (B, N, dim)."""
        if self.axes == 1:  # on an image of height 1: that convolution reads channels where they are
            kernel, image = convolution.weight[:, :, None], tokens_bnc.mT[:, :, None]
            out = F.conv2d(image, kernel, convolution.bias, padding=(0, 1), groups=self.dim)
        else:
            grid = tokens_bnc.unflatten(1, size).movedim(-1, 1)
            out = convolve_volume(convolution, grid) if self.axes == 3 else convolution(grid)
        return out.movedim(1, -1).flatten(1, -2)

    def rotate(self, x_bhnd: Tensor, size: Size) -> Tensor:
        """Rotary positions of the tokens, if this layer has them."""
        return ops.rotate(x_bhnd, *cell_rotation(x_bhnd, size, size, self.prefix)) if self.rope else x_bhnd


def in_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """For mixers that exponentiate, divide or invert: float32, and float64 where that was given."""
    return tuple(tensor.to(accumulation_dtype(tensor.dtype)) for tensor in tensors)


def token_count(x_bhnd: Tensor, mask_bn: Tensor | None) -> Tensor | int:
    """N, or with a mask the tokens of each item that count, (B, 1, 1, 1) and at least 1."""
    if mask_bn is None:
        return x_bhnd.shape[-2]
    return mask_bn.sum(1).clamp(min=1).to(x_bhnd.dtype)[:, None, None, None]


def mean_over_tokens(x_bhnd: Tensor, mask_bn: Tensor | None) -> Tensor:
    """The mean over the tokens that count, (B, heads, 1, d)."""
    if mask_bn is None:
        return x_bhnd.mean(-2, keepdim=True)
    filled = x_bhnd.masked_fill(~mask_bn[:, None, :, None], 0)
    return filled.sum(-2, keepdim=True) / token_count(x_bhnd, mask_bn)


def allowed(mask_bn: Tensor | None) -> Tensor | None:
    """Which keys queries may attend to, (B, 1, 1, N). Where none counts, all: their values are zeros, not NaN."""
    return None if mask_bn is None else (mask_bn | ~mask_bn.any(-1, keepdim=True))[:, None, None, :]


def check_count(owner: object, **named: int) -> None:
    """Integers of at least one, or an error that names the layer, the argument and what was given."""
    name = type(owner).__name__
    for key, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: {key} must be an integer, got {type(value).__name__}")
        if value < 1:
            raise ValueError(f"{name}: {key} must be at least 1, got {value}")
