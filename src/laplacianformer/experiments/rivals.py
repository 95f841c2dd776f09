"""Other ways to compute the ops of this package, to time against: plain PyTorch, torch.compile and other libraries.

Shared by the experiment `op-time`, the paper's figure of run time against size, and by benchmarks/kernels.py, the
benchmark of a release against other libraries and against the limit of the machine.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplacianformer._util.measuring import Call

Function = Callable[..., Tensor]


def plain_kernel(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """The formula as it is written, with its (..., N, M, d) intermediate result."""
    return torch.exp((x[..., :, None, :] - y[..., None, :, :]).abs().sum(-1) / -scale)


def plain_matmul(x: Tensor, y: Tensor, values: Tensor, scale: float) -> Tensor:
    return plain_kernel(x, y, scale) @ values


def plain_newton_schulz(w: Tensor, iterations: int, eps: float) -> Tensor:
    """From the identity start, as the layer uses it."""
    eye = torch.eye(w.shape[-1], device=w.device)
    a = w + eps * eye
    x = 1.5 / a.abs().sum(-1).amax(-1)[..., None, None] * eye
    for _ in range(iterations):
        x = x @ (2 * eye - a @ x)
    return x


def compiled(function: Function) -> Function:
    """Under torch.compile, for one shape. The reset keeps torch below its limit of compilations per function."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def cdist_kernel(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return torch.cdist(x, y, p=1.0).div(-scale).exp()


def cdist_matmul(x: Tensor, y: Tensor, values: Tensor, scale: float) -> Tensor:
    return cdist_kernel(x, y, scale) @ values


def sklearn_kernel() -> Callable[[Tensor, Tensor, float], object] | None:
    """scikit-learn's kernel, one matrix at a time, on the CPU and without gradients; None if not installed."""
    try:
        from sklearn.metrics.pairwise import laplacian_kernel
    except ImportError:
        return None
    return lambda x, y, scale: [
        laplacian_kernel(a, b, gamma=1 / scale) for a, b in zip(x.detach().numpy(), y.detach().numpy(), strict=True)
    ]


def keops_matmul() -> Function | None:
    """KeOps' product, which does not store the kernel either; None if not installed."""
    try:
        from pykeops.torch import LazyTensor  # type: ignore[import-not-found]
    except ImportError:
        return None

    def matmul(x: Tensor, y: Tensor, values: Tensor, scale: float) -> Tensor:
        distance = (LazyTensor(x[:, :, None].contiguous()) - LazyTensor(y[:, None].contiguous())).abs().sum(-1)
        result: Tensor = (-distance / scale).exp() @ values
        return result

    return matmul


def forward(function: Callable[..., Any], inputs: list[Tensor]) -> Call:
    """A forward pass without gradients."""

    def call() -> object:
        with torch.no_grad():
            return function(*inputs)

    return call


def forward_backward(function: Function, inputs: list[Tensor]) -> Call:
    """A forward pass, and the gradients of all inputs."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    with torch.no_grad():
        gradient = torch.randn_like(function(*inputs))
    return lambda: torch.autograd.grad(function(*leaves), leaves, gradient)
