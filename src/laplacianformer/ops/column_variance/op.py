"""column_variance: the public function and its registration with torch.library."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from laplacianformer.ops import _check as check
from laplacianformer.ops._backend import Backends, Checked, requested
from laplacianformer.ops._precision import accumulation_dtype, without_autocast
from laplacianformer.ops._registered import registered
from laplacianformer.ops.column_variance import cpu, reference


def column_variance(x: Tensor, *, backend: str | None = None) -> Tensor:
    """The variance of each column of each head, over the rows of the whole batch (divided by their number).

    Args:
        x: (B, heads, N, M), with at least one row.
        backend: force one (see `backends()`); by default the fastest that can run.

    Returns:
        (heads, M), in float32 (float64 for float64 x). O(B heads N M).
    """
    check.tensors("column_variance", x=x)
    if x.ndim != 4 or x.shape[0] * x.shape[2] == 0:
        raise ValueError(f"column_variance: x must be (B, heads, N, M) with rows in it, got {tuple(x.shape)}")
    variance, _ = _variance(x, requested(backend))
    return variance


class _Variance(Checked, Protocol):
    @property
    def forward(self) -> Callable[..., tuple[Tensor, Tensor]]: ...

    @property
    def backward(self) -> Callable[..., Tensor]: ...


def _triton() -> _Variance:
    from laplacianformer.ops.column_variance import triton

    return triton


BACKENDS: Backends[_Variance] = Backends("column_variance", cpu=cpu, triton=_triton, reference=reference)


@registered("laplacianformer::column_variance", lambda x, backend: reference.forward(x))
def _variance(x: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    with without_autocast(x.device):
        return BACKENDS.choose(backend, x).forward(x)


@registered("laplacianformer::column_variance_backward", lambda *arguments: reference.backward(*arguments[:-1]))
def _variance_backward(x: Tensor, mean: Tensor, factor: Tensor, backend: str) -> Tensor:
    with without_autocast(x.device):
        return BACKENDS.choose(backend, x, mean, factor).backward(x, mean, factor)


@_variance.register_fake
def _(x: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    shape, dtype = (x.shape[1], x.shape[3]), accumulation_dtype(x.dtype)
    return x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)


@_variance_backward.register_fake
def _(x: Tensor, mean: Tensor, factor: Tensor, backend: str) -> Tensor:
    return x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, ctx.backend = inputs
    ctx.save_for_backward(x, output[1])


def _differentiate(ctx: Any, grad: Tensor, grad_of_mean: Tensor) -> tuple[Tensor, None]:
    """The mean is an output only to be saved for this function: no gradient arrives through it."""
    x, mean = ctx.saved_tensors
    return _variance_backward(x, mean, grad * (2 / (x.shape[0] * x.shape[2])), ctx.backend), None


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, factor, _ = inputs
    ctx.save_for_backward(x, factor)


def _differentiate_again(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, None]:
    """The mean is computed again: what arrives through it is part of the gradient of x."""
    x, factor = (tensor.to(accumulation_dtype(tensor.dtype)) for tensor in ctx.saved_tensors)
    with without_autocast(x.device):
        centred, wide = x - x.mean((0, 2))[:, None], grad.to(x.dtype)
        dx = (wide - wide.mean((0, 2))[:, None]) * factor[:, None]
        return dx.to(grad.dtype), None, (centred * wide).sum((0, 2)), None


_variance.register_autograd(_differentiate, setup_context=_save)
_variance_backward.register_autograd(_differentiate_again, setup_context=_save_gradient)
