"""laplacian_kernel: the public function and its registration with torch.library."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from laplacianformer.ops import _check as check
from laplacianformer.ops._backend import Backends, Checked, requested
from laplacianformer.ops._precision import promote, under_autocast, without_autocast
from laplacianformer.ops._registered import registered
from laplacianformer.ops.laplacian_kernel import composition, cpu, reference
from laplacianformer.ops.rotate.inside import Rotation, take_inside


def laplacian_kernel(
    x: Tensor,
    y: Tensor,
    scale: float,
    *,
    x_rotation: Rotation | None = None,
    y_rotation: Rotation | None = None,
    backend: str | None = None,
) -> Tensor:
    """The kernel matrix exp(-|x_i - y_j|_1 / scale).

    Args:
        x: (..., N, d). Leading dimensions of x and y broadcast against each other.
        y: (..., M, d).
        scale: lambda, greater than 0.
        x_rotation, y_rotation: (cos, sin), to use rotate(x, cos, sin) and rotate(y, cos, sin) in their place.
        backend: force one (see `backends()`); by default the fastest that can run.

    Returns:
        (..., N, M), in the wider dtype of x and y (float32 under autocast). O(N M d) time, O(N M) memory.
    """
    check.tensors("laplacian_kernel", x=x, y=y)
    check.same_width("laplacian_kernel", x, y)
    check.positive("laplacian_kernel", scale=scale)
    x, y = promote(*under_autocast(x, y, dtype=torch.float32))
    x, y = check.broadcast_batch("laplacian_kernel", x=x, y=y)
    name = requested(backend)
    x, y, cos, sin = take_inside(BACKENDS, x, y, x_rotation, y_rotation, name)
    return kernel(x, y, cos, sin, float(scale), name)


class _Kernel(Checked, Protocol):
    @property
    def forward(self) -> Callable[..., Tensor]: ...

    @property
    def backward(self) -> Callable[..., tuple[Tensor, Tensor]]: ...


def _triton() -> _Kernel:
    from laplacianformer.ops.laplacian_kernel import triton

    return triton


BACKENDS: Backends[_Kernel] = Backends("laplacian_kernel", cpu=cpu, triton=_triton, reference=reference)


@registered("laplacianformer::laplacian_kernel", composition.kernel)
def kernel(x: Tensor, y: Tensor, cos: Tensor | None, sin: Tensor | None, scale: float, backend: str) -> Tensor:
    rotation = () if cos is None else (cos, sin)
    with without_autocast(x.device):
        return BACKENDS.choose(backend, x, y).forward(x, y, scale, *rotation)


@registered("laplacianformer::laplacian_kernel_backward", composition.gradients)
def kernel_backward(
    grad: Tensor, x: Tensor, y: Tensor, out: Tensor, cos: Tensor | None, sin: Tensor | None, scale: float, backend: str
) -> tuple[Tensor, Tensor]:
    rotation = () if cos is None else (cos, sin)
    with without_autocast(x.device):
        return BACKENDS.choose(backend, grad, x, y, out).backward(grad, x, y, out, scale, *rotation)


@kernel.register_fake
def _(x: Tensor, y: Tensor, *settings: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], y.shape[-2])


@kernel_backward.register_fake
def _(grad: Tensor, x: Tensor, y: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), y.new_empty(y.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, y, cos, sin, ctx.scale, ctx.backend = inputs
    ctx.save_for_backward(x, y, output, cos, sin)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
    dx, dy = kernel_backward(grad, *ctx.saved_tensors, ctx.scale, ctx.backend)
    return dx, dy, None, None, None, None


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, _ = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    d_grad, d_out = composition.second_derivative(grads, ctx.saved_tensors, ctx.scale)
    return d_grad, None, None, d_out, None, None, None, None


kernel.register_autograd(_differentiate, setup_context=_save)
kernel_backward.register_autograd(_differentiate_again, setup_context=_save_gradient)


@register_flop_formula(torch.ops.laplacianformer.laplacian_kernel)
def _(x_shape: Any, y_shape: Any, *args: Any, **kwargs: Any) -> int:
    """Subtract, absolute value and add for each pair and feature."""
    *batch, n, width = x_shape
    return 3 * torch.Size(batch).numel() * n * y_shape[-2] * width


@register_flop_formula(torch.ops.laplacianformer.laplacian_kernel_backward)
def _(grad_shape: Any, x_shape: Any, *args: Any, **kwargs: Any) -> int:
    """Subtract, sign, multiply, and an add to each of the two gradients."""
    return 5 * torch.Size(grad_shape).numel() * x_shape[-1]
