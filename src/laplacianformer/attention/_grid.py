"""What every token mixer on an H x W grid shares: projections, rotary positions, the local branch.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width, c channels (h * d).
"""

from torch import Tensor, nn

from laplacianformer import ops
from laplacianformer.attention._rope import cell_rotation
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import accumulation_dtype


class GridAttention(nn.Module):
    """Multi-head attention on a grid of tokens: proj(mix(q, k, v) + DWC(v)). Subclasses define `mix`.

    Args:
        dim: channels.
        num_heads: heads; each is dim / num_heads wide.
        rope: rotate queries and keys by their position on the grid (needs a head width divisible by 4).
        tied: one projection for queries and keys.
        qkv_bias: bias of the projections of queries, keys and values.
        proj_drop: dropout after the output projection.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        rope: bool = True,
        tied: bool = False,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if dim < 1 or num_heads < 1 or dim % num_heads:
            raise ValueError(f"dim must be a positive multiple of num_heads, got dim={dim}, num_heads={num_heads}")
        self.dim, self.num_heads, self.head_dim = dim, num_heads, dim // num_heads
        if rope and self.head_dim % 4:
            raise ValueError(f"rope needs a head width divisible by 4, got {self.head_dim}: pass rope=False")
        self.rope, self.tied = rope, tied

        self.qkv = nn.Linear(dim, (2 if tied else 3) * dim, bias=qkv_bias)
        self.dwc = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, size: Size) -> Tensor:
        """x: (B, H * W, dim) tokens in row-major order, size: (H, W) -> (B, H * W, dim)."""
        q_bhnd, k_bhnd, v_bhnd = self.project(x, size)
        mixed_bnhd = self.mix(q_bhnd, k_bhnd, v_bhnd, size).transpose(1, 2).to(v_bhnd.dtype)
        local_bnhd = self.local(v_bhnd, size).unflatten(2, (self.num_heads, self.head_dim))
        # In this order: the sum takes the layout of the first, and flattening it copies nothing.
        return self.proj_drop(self.proj((local_bnhd + mixed_bnhd).flatten(2)))

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size) -> Tensor:
        """The global branch: (B, heads, N, d) each, positions not yet applied -> (B, heads, N, d)."""
        raise TypeError(f"{type(self).__name__} must define mix")

    def project(self, x: Tensor, size: Size) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, heads, N, d) each: views of one projection."""
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise ValueError(f"expected tokens of shape (B, N, {self.dim}), got {tuple(x.shape)}")
        height, width = size
        if height < 1 or width < 1 or x.shape[1] != height * width:
            raise ValueError(f"size {tuple(size)} does not hold {x.shape[1]} tokens: expected H * W of them, H, W >= 1")
        parts = self.qkv(x).unflatten(-1, (-1, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        q_bhnd, *rest = parts.unbind(0)  # Not by index: the gradient would be padded with zeros three times.
        return (q_bhnd, q_bhnd, *rest) if self.tied else (q_bhnd, *rest)

    def local(self, v_bhnd: Tensor, size: Size) -> Tensor:
        """The local branch: a 3 x 3 depth-wise convolution of the values, (B, N, dim)."""
        grid_bchw = v_bhnd.transpose(1, 2).flatten(2).unflatten(1, size).permute(0, 3, 1, 2)
        return self.dwc(grid_bchw).permute(0, 2, 3, 1).flatten(1, 2)

    def rotate(self, x_bhnd: Tensor, size: Size, cells: Size) -> Tensor:
        """Rotary positions, if this layer has them, of the cells of a grid of tokens (cells = size: the tokens)."""
        return ops.rotate(x_bhnd, *cell_rotation(x_bhnd, size, cells)) if self.rope else x_bhnd


def in_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """For mixers that exponentiate, divide or invert: float32, and float64 where that was given."""
    return tuple(tensor.to(accumulation_dtype(tensor.dtype)) for tensor in tensors)


def check_count(owner: object, **named: int) -> None:
    """Integers of at least one, or an error that names the layer, the argument and what was given."""
    name = type(owner).__name__
    for key, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: {key} must be an integer, got {type(value).__name__}")
        if value < 1:
            raise ValueError(f"{name}: {key} must be at least 1, got {value}")
