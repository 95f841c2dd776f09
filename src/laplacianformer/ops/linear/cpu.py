"""The linear layer by the products of oneDNN, with its gradient."""

from typing import Any

import torch
from torch import Tensor

from laplacianformer.ops import _cpu_extension as cpu_extension
from laplacianformer.ops._precision import is_autocast, without_autocast
from laplacianformer.ops._tracing import is_unobserved, needs_gradient
from laplacianformer.ops.linear import blas, onednn


def check(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Why this is not computed by oneDNN, or None if it is."""
    if (missing := cpu_extension.missing()) is not None:
        return missing
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if (reason := cpu_extension.check(*tensors)) is not None:
        return reason
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        return f"it takes float32, got {', '.join(str(tensor.dtype) for tensor in tensors)}"
    return "autocast is on" if is_autocast(x.device) else onednn.check(x, weight)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, backend: str | None = None) -> Tensor:
    """As `reference.linear`."""
    if needs_gradient(x, weight, bias):
        result: Tensor = _Linear.apply(x, weight, bias)
        return result
    return _forward(x, weight, bias)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return onednn.product(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # Second derivatives, batched gradients and counters see PyTorch's own products.
        products: Any = blas if torch.is_grad_enabled() or not is_unobserved(grad) else onednn
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, len(weight))
        with without_autocast(grad.device):
            return (
                products.product(rows, weight.t()).view(x.shape) if of_x else None,
                products.weight_gradient(rows, x.reshape(-1, x.shape[-1])) if of_weight else None,
                rows.sum(0) if of_bias else None,
            )
