"""The matrix of the Laplacian kernel."""

from laplacianformer.ops.laplacian_kernel.op import laplacian_kernel

__all__ = ["laplacian_kernel"]
