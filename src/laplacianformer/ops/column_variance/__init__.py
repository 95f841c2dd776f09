"""The variance of the columns of kernel matrices, of one process or of all."""

from laplacianformer.ops.column_variance.op import column_variance
from laplacianformer.ops.column_variance.synced import synced_column_variance

__all__ = ["column_variance", "synced_column_variance"]
