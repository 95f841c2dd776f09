"""Kernels by name, for layers in which the kernel can be exchanged."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from laplacianformer import ops

_OTHERS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "gaussian": ops.gaussian_kernel,
    "matern": ops.matern_kernel,
    "cosine": ops.cosine_kernel,
    "polynomial": ops.polynomial_kernel,
}
KERNELS = ("laplacian", *_OTHERS)


def kernel_matrix(name: str, x: Tensor, y: Tensor, scale: float, **rotations: Any) -> Tensor:
    """(..., N, d), (..., M, d) -> (..., N, M). Only the Laplacian kernel can rotate x or y as it reads them."""
    if name == "laplacian":
        return ops.laplacian_kernel(x, y, scale, **rotations)
    return _OTHERS[name](x, y, scale)


def kernel_product(name: str, x: Tensor, y: Tensor, values: Tensor, scale: float, **rotations: Any) -> Tensor:
    """The kernel matrix times values; the Laplacian kernel is never stored."""
    if name == "laplacian":
        return ops.laplacian_matmul(x, y, values, scale, **rotations)
    return kernel_matrix(name, x, y, scale) @ values
