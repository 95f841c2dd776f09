"""A linear layer."""

from laplacianformer.ops.linear.op import linear

__all__ = ["linear"]
