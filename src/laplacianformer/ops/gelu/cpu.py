"""GELU and its gradient in C++, in one pass over memory; float64 by PyTorch's own functions."""

import torch
from torch import Tensor

from laplacianformer.ops._cpu_extension import check as check
from laplacianformer.ops._cpu_extension import level
from laplacianformer.ops.gelu import reference


def forward(x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        return reference.forward(x)
    x, out = _with_result(x)
    torch.ops.laplacianformer_cpu.gelu_forward(x, None, out, level())
    return out


def backward(grad: Tensor, x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        return reference.backward(grad, x)
    x, out = _with_result(x)
    if grad.stride() != out.stride():
        grad = out.copy_(grad)  # in the order of x; it is overwritten as it is read
    torch.ops.laplacianformer_cpu.gelu_backward(grad, x, None, out, None, level())
    return out


def _with_result(x: Tensor) -> tuple[Tensor, Tensor]:
    """x, copied unless its numbers lie one after the other, in whatever order; and a tensor in the same order."""
    out = torch.empty_like(x)
    if out.stride() == x.stride():
        return x, out
    x = x.contiguous()
    return x, torch.empty_like(x)
