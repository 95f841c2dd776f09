"""The product and its gradient in functions that all have derivatives, as laplacian_kernel/composition.py has them for
the kernel. The kernel matrix is stored."""

from torch import Tensor

from laplacianformer.ops._precision import accumulation_dtype, without_autocast
from laplacianformer.ops.laplacian_kernel import composition
from laplacianformer.ops.laplacian_kernel.op import kernel, kernel_backward


def product(
    x: Tensor, y: Tensor, values: Tensor, cos: Tensor | None, sin: Tensor | None, scale: float, backend: str
) -> Tensor:
    """laplacian_kernel(x, y) @ values."""
    wide_x, wide_y, wide_values = _wide(x, y, values)
    return (composition.kernel(wide_x, wide_y, cos, sin, scale, backend) @ wide_values).to(x.dtype)


def gradients(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    values: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    scale: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, y and values."""
    wide_grad, wide_x, wide_y, wide_values = _wide(grad, x, y, values)
    weights = composition.kernel(wide_x, wide_y, cos, sin, scale, backend)
    into_kernel = wide_grad @ wide_values.mT
    dx, dy = composition.gradients(into_kernel, wide_x, wide_y, weights, cos, sin, scale, backend)
    return dx.to(x.dtype), dy.to(y.dtype), (weights.mT @ wide_grad).to(values.dtype)


def second_derivative(
    grads: tuple[Tensor, Tensor, Tensor],
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
    scale: float,
    backend: str,
) -> tuple[Tensor, ...]:
    """The gradients of `grad`, x, y and values from those of dx, dy and dvalues.

    What arrives is that of sum_ij k_ij (grad_i . u_j + grad_i . values_j t_ij), with u the gradient of dvalues and
    t_ij the change of the distance with x and y, over -scale.
    """
    *tensors, cos, sin = saved
    with without_autocast(tensors[0].device):
        grad, x, y, values = _wide(*(t for t in tensors if t is not None))
        weights = kernel(x, y, cos, sin, scale, backend)
        u = grads[2].to(values.dtype)
        change = composition.changes(x, y, *grads[:2], cos, sin) / -scale
        into_kernel = grad @ u.mT + (grad @ values.mT) * change
        dx, dy = kernel_backward(into_kernel, x, y, weights, cos, sin, scale, backend)
        found = weights @ u + (weights * change) @ values, dx, dy, (weights * change).mT @ grad
    return tuple(one.to(like.dtype) for one, like in zip(found, tensors, strict=False) if like is not None)


def _wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.to(accumulation_dtype(tensor.dtype)) for tensor in tensors)
