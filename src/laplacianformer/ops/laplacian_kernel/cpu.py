"""The Laplacian kernel and its gradient in C++. The mathematics is in reference.py, the code in csrc/."""

import torch
from torch import Tensor

from laplacianformer.ops._cpu_extension import check as check
from laplacianformer.ops._cpu_extension import level, tables


def forward(x: Tensor, y: Tensor, scale: float, cos: Tensor | None = None, sin: Tensor | None = None) -> Tensor:
    out: Tensor = torch.ops.laplacianformer_cpu.kernel_forward(x, y, *tables(cos, sin), scale, level())
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
    dx, dy = torch.ops.laplacianformer_cpu.kernel_backward(grad, x, y, out, *tables(cos, sin), scale, level())
    return dx, dy
