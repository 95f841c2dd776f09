"""The Laplacian kernel times values, without the matrix."""

from laplacianformer.ops.laplacian_matmul.op import laplacian_matmul

__all__ = ["laplacian_matmul"]
