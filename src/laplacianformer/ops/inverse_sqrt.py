"""The inverse square root of a symmetric positive semi-definite matrix, with a gradient that never blows up."""

from typing import Any

import torch
from torch import Tensor

from laplacianformer.ops import _check as check
from laplacianformer.ops._precision import accumulation_dtype, under_autocast, without_autocast
from laplacianformer.ops._registered import registered


def inverse_sqrt(w: Tensor, eps: float) -> Tensor:
    """(w + eps I)^(-1/2) for symmetric positive semi-definite w, each matrix on its own.

    Args:
        w: (..., m, m), symmetric.
        eps: added to the eigenvalues, greater than 0.

    Returns:
        (..., m, m), in the dtype of w (float32 under autocast). O(m^3), by an eigendecomposition. It has derivatives
        of up to the third order.
    """
    check.tensors("inverse_sqrt", w=w)
    check.square("inverse_sqrt", w)
    check.positive("inverse_sqrt", eps=eps)
    (w,) = under_autocast(w, dtype=torch.float32)
    return _inverse_sqrt(w, float(eps))[0]


_ORDERS = 3  # of derivatives that the composition has


def _decomposed(w: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and the square roots of the eigenvalues and the eigenvectors for its gradient."""
    # A non-finite matrix would make eigh fail for the whole batch: it is replaced, and its result is NaN.
    finite = w.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    safe = torch.where(finite, w, 0).to(accumulation_dtype(w.dtype))
    values, vectors = torch.linalg.eigh(safe)
    roots = torch.where(finite[..., 0], (values.clamp(min=0) + eps).sqrt(), torch.nan)
    return vectors / roots[..., None, :] @ vectors.mT, roots, vectors.contiguous()


def _composition(w: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same for derivatives. A Newton step for X W X = I whose Jacobian is constant makes those of one more order
    right; like the gradient below, it divides by sums of roots, never by differences."""
    x, roots, vectors = _decomposed(w.detach(), eps)
    sums = roots[..., :, None] + roots[..., None, :]
    change = (w - w.detach()).to(x.dtype)  # zero, with a derivative
    start, a = x, vectors * roots.square()[..., None, :] @ vectors.mT
    for _ in range(_ORDERS):
        beyond = x @ (a + change) @ x - start @ a @ start
        x = x - vectors @ (vectors.mT @ beyond @ vectors / sums) @ vectors.mT
    return x.to(w.dtype), roots, vectors


@registered("laplacianformer::inverse_sqrt", _composition)
def _inverse_sqrt(w: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    with without_autocast(w.device):
        out, roots, vectors = _decomposed(w, eps)
    return out.to(w.dtype), roots, vectors


def _gradient_composition(grad: Tensor, w: Tensor, roots: Tensor, vectors: Tensor, eps: float) -> Tensor:
    pulled: Tensor = torch.func.vjp(lambda w: _composition(w, eps)[0], w)[1](grad)[0]
    return pulled


@registered("laplacianformer::inverse_sqrt_backward", _gradient_composition)
def _inverse_sqrt_backward(grad: Tensor, w: Tensor, roots: Tensor, vectors: Tensor, eps: float) -> Tensor:
    """Daleckii and Krein: (f(a) - f(b)) / (a - b) = -1 / (sqrt(ab) (sqrt(a) + sqrt(b))) has no pole at a = b."""
    rows, columns = roots[..., :, None], roots[..., None, :]
    slopes = -1 / (rows * columns * (rows + columns))
    with without_autocast(grad.device):
        inner = vectors.mT @ grad.to(vectors.dtype) @ vectors
        return (vectors @ (slopes * inner) @ vectors.mT).to(grad.dtype)


@_inverse_sqrt.register_fake
def _(w: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    dtype = accumulation_dtype(w.dtype)
    return w.new_empty(w.shape), w.new_empty(w.shape[:-1], dtype=dtype), w.new_empty(w.shape, dtype=dtype)


@_inverse_sqrt_backward.register_fake
def _(grad: Tensor, w: Tensor, roots: Tensor, vectors: Tensor, eps: float) -> Tensor:
    return grad.new_empty(grad.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    w, ctx.eps = inputs
    _, roots, vectors = output
    ctx.mark_non_differentiable(roots, vectors)
    ctx.save_for_backward(w, roots, vectors)


def _differentiate(ctx: Any, grad: Tensor, *unused: Tensor) -> tuple[Tensor, None]:
    return _inverse_sqrt_backward(grad, *ctx.saved_tensors, ctx.eps), None


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    given, w, roots, vectors = ctx.saved_tensors
    with without_autocast(grad.device):
        pull_back = torch.func.vjp(
            lambda given, w: _gradient_composition(given, w, roots, vectors, ctx.eps), *(given, w)
        )[1]
        return *pull_back(grad), None, None, None


_inverse_sqrt.register_autograd(_differentiate, setup_context=_save)
_inverse_sqrt_backward.register_autograd(_differentiate_again, setup_context=_save_gradient)
