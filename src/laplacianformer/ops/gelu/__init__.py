"""The activation of the MLPs."""

from laplacianformer.ops.gelu.op import gelu

__all__ = ["gelu"]
