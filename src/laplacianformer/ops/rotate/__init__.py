"""The rotation of pairs of channels, for rotary positions."""

from laplacianformer.ops.rotate.op import rotate

__all__ = ["rotate"]
