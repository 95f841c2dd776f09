"""Kernels to compare the Laplacian and the Gaussian with. Like the Gaussian, they are matrix products without backends.

All are positive semi-definite. (..., N, d), (..., M, d) -> (..., N, M), in the wider dtype of x and y (float32 under
autocast). O(N M d) time, O(N M) memory.
"""

import math

from torch import Tensor

from laplacianformer.ops._precision import without_autocast
from laplacianformer.ops.gaussian_kernel import checked_points, squared_distances

_SMALLEST = 1e-12  # shorter squared lengths are raised to it: square roots and directions have no gradient at 0


def matern_kernel(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """Matern's kernel of smoothness 3/2: (1 + r) exp(-r), r = sqrt(3) |x_i - y_j|_2 / scale.

    In smoothness between exp(-|x - y|_2 / scale), which is 1/2, and the Gaussian, which is infinite.
    """
    x, y, dtype = checked_points("matern_kernel", x, y, scale)
    with without_autocast(x.device):
        r = squared_distances(x, y).clamp(min=_SMALLEST).sqrt() * (math.sqrt(3) / scale)
        return ((1 + r) * (-r).exp()).to(dtype)


def polynomial_kernel(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """The polynomial kernel of degree 2: (1 + x_i'y_j / scale^2)^2."""
    x, y, dtype = checked_points("polynomial_kernel", x, y, scale)
    with without_autocast(x.device):
        return (1 + x @ y.mT / scale**2).square().to(dtype)


def cosine_kernel(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """The cosine of the angle between x_i and y_j, whatever the scale."""
    x, y, dtype = checked_points("cosine_kernel", x, y, scale)
    with without_autocast(x.device):
        x, y = (z * z.square().sum(-1, keepdim=True).clamp(min=_SMALLEST).rsqrt() for z in (x, y))
        return (x @ y.mT).to(dtype)
