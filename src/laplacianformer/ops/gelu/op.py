"""gelu: the public function.

It is not registered with torch.library: compilers, exporters, counters and transforms see PyTorch's own function, which
all of them know.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from laplacianformer.ops import _check as check
from laplacianformer.ops._backend import Backends, Checked, requested
from laplacianformer.ops._tracing import is_unobserved, needs_gradient
from laplacianformer.ops.gelu import cpu, reference


def gelu(x: Tensor, *, backend: str | None = None) -> Tensor:
    """x Phi(x), Phi the distribution function of the normal distribution: `torch.nn.functional.gelu`.

    On the cpu backend, float32 is right to a few rounding errors for every x; PyTorch's own function loses all digits
    of the small results for x < -5, and gives NaN for infinity.

    Args:
        x: any shape.
        backend: force one (see `backends()`); by default the fastest that can run.
    """
    check.floating("gelu", x=x)
    name = requested(backend)
    if not is_unobserved(x) or BACKENDS.choose(name, x) is not cpu:
        return reference.forward(x)
    result: Tensor = _Gelu.apply(x) if needs_gradient(x) else cpu.forward(x)
    return result


class _Activation(Checked, Protocol):
    @property
    def forward(self) -> Callable[..., Tensor]: ...

    @property
    def backward(self) -> Callable[..., Tensor]: ...


def _triton() -> _Activation:
    from laplacianformer.ops.gelu import triton

    return triton


BACKENDS: Backends[_Activation] = Backends("gelu", cpu=cpu, triton=_triton, reference=reference)


class _Gelu(torch.autograd.Function):
    """In C++, with the gradient by PyTorch where that is differentiated again or observed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return cpu.forward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        by_torch = torch.is_grad_enabled() or not is_unobserved(grad)
        return (reference if by_torch else cpu).backward(grad, x)
