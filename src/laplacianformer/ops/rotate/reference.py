"""The rotation of pairs of channels, in plain PyTorch."""

import torch
from torch import Tensor


def check(*tensors: Tensor) -> str | None:
    return None


def forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)
