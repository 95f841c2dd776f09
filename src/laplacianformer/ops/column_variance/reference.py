"""The variance of columns and its gradient, in plain PyTorch."""

from torch import Tensor

from laplacianformer.ops._precision import accumulation_dtype


def check(*tensors: Tensor) -> str | None:
    return None


def forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """The variance and the mean of each column of each head, (heads, M) each."""
    wide = x.to(accumulation_dtype(x.dtype))
    mean = wide.mean((0, 2))
    return (wide - mean[:, None]).square().mean((0, 2)), mean


def backward(x: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """factor (x - mean)."""
    return ((x - mean[:, None]) * factor[:, None]).to(x.dtype).contiguous()
