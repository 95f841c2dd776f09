"""laplacian_kernel(x, y) @ values and its gradient in C++, the kernel never larger than a block in the cache."""

import torch
from torch import Tensor

from laplacianformer.ops.cpu_extension import check as check
from laplacianformer.ops.cpu_extension import dense, empty_like, level, tables


def forward(
    x: Tensor, y: Tensor, values: Tensor, scale: float, cos: Tensor | None = None, sin: Tensor | None = None
) -> Tensor:
    out = torch.empty((*x.shape[:-1], values.shape[-1]), dtype=x.dtype, device="cpu")
    if values.shape[-1] == 0:  # the C++ side takes one column or more
        return out
    torch.ops.laplacianformer_cpu.matmul_forward(*dense(x, y, values), *tables(cos, sin), out, scale, level())
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    values: Tensor,
    scale: float,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    if values.shape[-1] == 0:
        return empty_like(x).zero_(), empty_like(y).zero_(), empty_like(values)
    dx, dy, dvalues = empty_like(x), empty_like(y), empty_like(values)
    tensors = (*dense(grad, x, y, values), *tables(cos, sin))
    torch.ops.laplacianformer_cpu.matmul_backward(*tensors, dx, dy, dvalues, scale, level())
    return dx, dy, dvalues
