"""The variance of columns on GPUs: reductions of plain PyTorch, bound by memory, so the reference is the backend."""

from laplacianformer.ops._triton_support import check as check
from laplacianformer.ops.column_variance.reference import backward as backward
from laplacianformer.ops.column_variance.reference import forward as forward
