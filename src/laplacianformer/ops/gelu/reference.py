"""GELU and its gradient, by PyTorch's own functions."""

import torch
from torch import Tensor
from torch.nn import functional as F


def check(*tensors: Tensor) -> str | None:
    return None


def forward(x: Tensor) -> Tensor:
    return F.gelu(x)


def backward(grad: Tensor, x: Tensor) -> Tensor:
    dx: Tensor = torch.ops.aten.gelu_backward(grad, x)
    return dx
