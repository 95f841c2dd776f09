"""The variance of columns and its gradient in C++, each in one pass over memory."""

import torch
from torch import Tensor

from laplacianformer.ops._cpu_extension import check as check
from laplacianformer.ops._cpu_extension import dense, level
from laplacianformer.ops._precision import accumulation_dtype


def forward(x: Tensor) -> tuple[Tensor, Tensor]:
    shape, dtype = (x.shape[1], x.shape[3]), accumulation_dtype(x.dtype)
    variance, mean = torch.empty(shape, dtype=dtype, device="cpu"), torch.empty(shape, dtype=dtype, device="cpu")
    torch.ops.laplacianformer_cpu.variance_forward(*dense(x), mean, variance, level())
    return variance, mean


def backward(x: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    torch.ops.laplacianformer_cpu.variance_backward(*dense(x), mean.contiguous(), factor.contiguous(), out, level())
    return out
