"""The matrix products of linear layers by the library that PyTorch's own products use."""

import torch
from torch import Tensor


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias of (rows, d) and (width, d), written to `out` where that is given."""
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)


def weight_gradient(grad: Tensor, x: Tensor, total: Tensor | None = None) -> Tensor:
    """grad.T @ x of (rows, width) and (rows, d), added to `total` where that is given."""
    return torch.mm(grad.t(), x) if total is None else total.addmm_(grad.t(), x)
