"""The Laplacian kernel and its gradient in C++. The mathematics is in reference.py, the code in csrc/."""

import torch
from torch import Tensor

from laplacianformer.ops.cpu_extension import check as check
from laplacianformer.ops.cpu_extension import dense, empty_like, level, tables


def forward(x: Tensor, y: Tensor, scale: float, cos: Tensor | None = None, sin: Tensor | None = None) -> Tensor:
    out = torch.empty((*x.shape[:-1], y.shape[-2]), dtype=x.dtype, device="cpu")
    torch.ops.laplacianformer_cpu.kernel_forward(*dense(x, y), *tables(cos, sin), out, scale, level())
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    out: Tensor,
    scale: float,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    dx, dy = empty_like(x), empty_like(y)
    tensors = (*dense(grad, x, y, out), *tables(cos, sin))
    torch.ops.laplacianformer_cpu.kernel_backward(*tensors, dx, dy, scale, level())
    return dx, dy
