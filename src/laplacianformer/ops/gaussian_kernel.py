"""The Gaussian kernel, by matrix products. Plain PyTorch throughout: no backends to choose from."""

import torch
from torch import Tensor

from laplacianformer.ops import _check as check
from laplacianformer.ops._precision import accumulation_dtype, promote, under_autocast, without_autocast


def gaussian_kernel(x: Tensor, y: Tensor, scale: float, *, backend: str | None = None) -> Tensor:
    """The kernel matrix exp(-|x_i - y_j|_2^2 / (2 scale^2)), for comparison with `laplacian_kernel`.

    Args:
        x: (..., N, d). Leading dimensions of x and y broadcast against each other.
        y: (..., M, d).
        scale: sigma, greater than 0.
        backend: None or "reference": matrix products are fast on every device.

    Returns:
        (..., N, M), in the wider dtype of x and y (float32 under autocast). O(N M d) time, O(N M) memory.
    """
    check.choice("gaussian_kernel", (None, "reference"), backend=backend)
    x, y, dtype = checked_points("gaussian_kernel", x, y, scale)
    with without_autocast(x.device):
        return (squared_distances(x, y) / (-2 * scale**2)).exp().to(dtype)


def checked_points(op: str, x: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor, torch.dtype]:
    """Both in the dtype that accumulates, with the same leading dimensions; and the dtype of the result."""
    check.tensors(op, x=x, y=y)
    check.same_width(op, x, y)
    check.positive(op, scale=scale)
    x, y = promote(*under_autocast(x, y, dtype=torch.float32))
    x, y = check.broadcast_batch(op, x=x, y=y)
    dtype = accumulation_dtype(x.dtype)
    return x.to(dtype), y.to(dtype), x.dtype


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """|x_i - y_j|_2^2, not negative."""
    # |x|^2 + |y|^2 - 2 x'y cancels when x and y share an offset; distances don't change without it.
    offset = y.detach().mean(-2, keepdim=True) if y.shape[-2] > 0 else 0
    x, y = x - offset, y - offset
    squares = x.square().sum(-1)[..., None] + y.square().sum(-1)[..., None, :] - 2 * (x @ y.mT)
    return squares.clamp(min=0)
