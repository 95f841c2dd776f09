"""laplacian_matmul: the public function and its registration with torch.library."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from laplacianformer.ops import _check as check
from laplacianformer.ops._backend import Backends, Checked, requested
from laplacianformer.ops._precision import promote, under_autocast, without_autocast
from laplacianformer.ops._registered import registered
from laplacianformer.ops.laplacian_matmul import composition, cpu, reference
from laplacianformer.ops.rotate.inside import Rotation, take_inside


def laplacian_matmul(
    x: Tensor,
    y: Tensor,
    values: Tensor,
    scale: float,
    *,
    x_rotation: Rotation | None = None,
    y_rotation: Rotation | None = None,
    backend: str | None = None,
) -> Tensor:
    """laplacian_kernel(x, y, scale) @ values, without ever storing the kernel matrix.

    Args:
        x: (..., N, d). Leading dimensions of x, y and values broadcast against each other.
        y: (..., M, d).
        values: (..., M, v).
        scale: lambda, greater than 0.
        x_rotation, y_rotation: (cos, sin), to use rotate(x, cos, sin) and rotate(y, cos, sin) in their place.
        backend: force one (see `backends()`); by default the fastest that can run.

    Returns:
        (..., N, v), in the widest dtype of the three (autocast's own under autocast, as for a matrix
        product). O(N M (d + v)) time and O(N + M) memory, also for the gradient, which recomputes.
    """
    check.tensors("laplacian_matmul", x=x, y=y, values=values)
    check.same_width("laplacian_matmul", x, y)
    check.positive("laplacian_matmul", scale=scale)
    if y.shape[-2] != values.shape[-2]:
        raise ValueError(
            "laplacian_matmul: y and values must have the same number of rows, "
            f"got {tuple(y.shape)} and {tuple(values.shape)}"
        )
    x, y, values = promote(*under_autocast(x, y, values))
    x, y, values = check.broadcast_batch("laplacian_matmul", x=x, y=y, values=values)
    name = requested(backend)
    x, y, cos, sin = take_inside(BACKENDS, x, y, x_rotation, y_rotation, name)
    return _matmul(x, y, values, cos, sin, float(scale), name)


class _Matmul(Checked, Protocol):
    @property
    def forward(self) -> Callable[..., Tensor]: ...

    @property
    def backward(self) -> Callable[..., tuple[Tensor, Tensor, Tensor]]: ...


def _triton() -> _Matmul:
    from laplacianformer.ops.laplacian_matmul import triton

    return triton


BACKENDS: Backends[_Matmul] = Backends("laplacian_matmul", cpu=cpu, triton=_triton, reference=reference)


@registered("laplacianformer::laplacian_matmul", composition.product)
def _matmul(
    x: Tensor, y: Tensor, values: Tensor, cos: Tensor | None, sin: Tensor | None, scale: float, backend: str
) -> Tensor:
    rotation = () if cos is None else (cos, sin)
    with without_autocast(x.device):
        return BACKENDS.choose(backend, x, y, values).forward(x, y, values, scale, *rotation)


@registered("laplacianformer::laplacian_matmul_backward", composition.gradients)
def _matmul_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    values: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    scale: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    rotation = () if cos is None else (cos, sin)
    with without_autocast(x.device):
        return BACKENDS.choose(backend, grad, x, y, values).backward(grad, x, y, values, scale, *rotation)


@_matmul.register_fake
def _(x: Tensor, y: Tensor, values: Tensor, *settings: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], values.shape[-1])


@_matmul_backward.register_fake
def _(grad: Tensor, x: Tensor, y: Tensor, values: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), y.new_empty(y.shape), values.new_empty(values.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, y, values, cos, sin, ctx.scale, ctx.backend = inputs
    ctx.save_for_backward(x, y, values, cos, sin)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None, None]:
    dx, dy, dvalues = _matmul_backward(grad, *ctx.saved_tensors, ctx.scale, ctx.backend)
    return dx, dy, dvalues, None, None, None, None


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale, ctx.backend = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    return *composition.second_derivative(grads, ctx.saved_tensors, ctx.scale, ctx.backend), None, None, None, None


_matmul.register_autograd(_differentiate, setup_context=_save)
_matmul_backward.register_autograd(_differentiate_again, setup_context=_save_gradient)


@register_flop_formula(torch.ops.laplacianformer.laplacian_matmul)
def _(x_shape: Any, y_shape: Any, values_shape: Any, *args: Any, **kwargs: Any) -> int:
    """Subtract, absolute value and add for each pair and feature, then a matrix product."""
    *batch, n, width = x_shape
    return torch.Size(batch).numel() * n * y_shape[-2] * (3 * width + 2 * values_shape[-1])


@register_flop_formula(torch.ops.laplacianformer.laplacian_matmul_backward)
def _(grad_shape: Any, x_shape: Any, y_shape: Any, *args: Any, **kwargs: Any) -> int:
    """The kernel again, five operations per pair and feature for its gradient, and two matrix products."""
    *batch, n, width = x_shape
    return torch.Size(batch).numel() * n * y_shape[-2] * (8 * width + 4 * grad_shape[-1])
