"""laplacian_kernel(x, y) @ values and its gradient in C++, the kernel never larger than a block in the cache."""

import torch
from torch import Tensor

from laplacianformer.ops._cpu_extension import check as check
from laplacianformer.ops._cpu_extension import level, tables


def forward(
    x: Tensor, y: Tensor, values: Tensor, scale: float, cos: Tensor | None = None, sin: Tensor | None = None
) -> Tensor:
    if values.shape[-1] == 0:  # the C++ side takes one column or more
        return x.new_empty((*x.shape[:-1], 0))
    out: Tensor = torch.ops.laplacianformer_cpu.matmul_forward(x, y, values, *tables(cos, sin), scale, level())
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
        return x.new_zeros(x.shape), y.new_zeros(y.shape), values.new_empty(values.shape)
    dx, dy, dvalues = torch.ops.laplacianformer_cpu.matmul_backward(
        grad, x, y, values, *tables(cos, sin), scale, level()
    )
    return dx, dy, dvalues
