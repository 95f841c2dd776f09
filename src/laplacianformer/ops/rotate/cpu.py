"""The rotation of pairs of channels in C++, in one pass over memory."""

import torch
from torch import Tensor

from laplacianformer.ops._cpu_extension import check as check
from laplacianformer.ops._cpu_extension import dense, level


def forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    torch.ops.laplacianformer_cpu.rotate(*dense(x), cos.contiguous(), sin.contiguous(), out, level())
    return out
