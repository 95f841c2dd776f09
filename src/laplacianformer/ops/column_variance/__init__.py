"""The variance of the columns of kernel matrices, of one process or of all."""

from laplacianformer.ops.column_variance.batch import batch_variance
from laplacianformer.ops.column_variance.op import column_variance

__all__ = ["batch_variance", "column_variance"]
