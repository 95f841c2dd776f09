"""Two linear layers with a GELU between them."""

from laplacianformer.ops.mlp.op import mlp

__all__ = ["mlp"]
