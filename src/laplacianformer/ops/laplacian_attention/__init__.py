"""The global branch of the attention as one op."""

from laplacianformer.ops.laplacian_attention.op import laplacian_attention

__all__ = ["laplacian_attention"]
