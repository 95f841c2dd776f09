"""The Gaussian kernel, by matrix products. Plain PyTorch throughout: no backends to choose from."""

import torch
from torch import Tensor

from laplacianformer.ops import check
from laplacianformer.ops.precision import accumulation_dtype, promote, under_autocast, without_autocast


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
    check.tensors("gaussian_kernel", x=x, y=y)
    check.same_width("gaussian_kernel", x, y)
    check.positive("gaussian_kernel", scale=scale)
    check.choice("gaussian_kernel", (None, "reference"), backend=backend)
    x, y = promote(*under_autocast(x, y, dtype=torch.float32))
    x, y = check.broadcast_batch("gaussian_kernel", ("x", x), ("y", y))

    out_dtype, dtype = x.dtype, accumulation_dtype(x.dtype)
    x, y = x.to(dtype), y.to(dtype)
    with without_autocast(x.device):
        # |x|^2 + |y|^2 - 2 x'y cancels when x and y share an offset; distances don't change without it.
        offset = y.detach().mean(-2, keepdim=True) if y.shape[-2] > 0 else 0
        x, y = x - offset, y - offset
        squares = x.square().sum(-1)[..., None] + y.square().sum(-1)[..., None, :] - 2 * (x @ y.mT)
        return (squares.clamp(min=0) / (-2 * scale**2)).exp().to(out_dtype)
