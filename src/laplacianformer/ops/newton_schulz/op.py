"""newton_schulz: the public functions and their registration with torch.library."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from laplacianformer.ops import _check as check
from laplacianformer.ops._backend import Backends, Checked, requested
from laplacianformer.ops._precision import accumulation_dtype, full_products, under_autocast, without_autocast
from laplacianformer.ops._registered import registered
from laplacianformer.ops.newton_schulz import cpu, reference

Start = Literal["transpose", "identity", "authors"]
Gradient = Literal["exact", "implicit"]


def newton_schulz(
    w: Tensor,
    iterations: int = 6,
    eps: float = 1e-2,
    *,
    start: Start = "transpose",
    gradient: Gradient = "exact",
    backend: str | None = None,
) -> Tensor:
    """The inverse of w + eps I by `iterations` Newton-Schulz steps, each matrix on its own.

    Args:
        w: (..., m, m).
        iterations: steps; each squares the residual I - (w + eps I) X.
        eps: added to the diagonal.
        start: "transpose" converges for every invertible matrix. "identity" needs about half the steps
            and a symmetric positive definite one. "authors" is that of the paper's released ops, to compare with:
            1.8 / (largest row sum of w)^2 (w + eps I), for the same matrices without negative entries.
        gradient: "exact" differentiates the steps that ran; "implicit" is -X' G X', right only at convergence.
        backend: force one (see `backends()`); by default the fastest that can run.

    Returns:
        (..., m, m), in the dtype of w (float32 under autocast). Computed in float32 or float64; O(iterations m^3).
    """
    w = _checked("newton_schulz", w, iterations, eps, start)
    check.choice("newton_schulz", ("exact", "implicit"), gradient=gradient)
    return _inverse(w, iterations, float(eps), start, gradient, requested(backend))


@torch.no_grad()
def newton_schulz_residuals(w: Tensor, iterations: int = 6, eps: float = 1e-2, *, start: Start = "transpose") -> Tensor:
    """|I - (w + eps I) X_k|_F / sqrt(m) for k = 0 ... iterations: (iterations + 1, ...). For diagnosis only."""
    w = _checked("newton_schulz_residuals", w, iterations, eps, start)
    return reference.residuals(w, iterations, float(eps), start)


def _checked(op: str, w: Tensor, iterations: int, eps: float, start: str) -> Tensor:
    check.tensors(op, w=w)
    check.square(op, w)
    if w.shape[-1] == 0:
        raise ValueError(f"{op}: w must have at least one row, got {tuple(w.shape)}")
    check.iterations(op, iterations)
    check.not_negative(op, eps=eps)
    check.choice(op, get_args(Start), start=start)
    return under_autocast(w, dtype=torch.float32)[0]


class _Inverse(Checked, Protocol):
    @property
    def forward(self) -> Callable[..., Tensor]: ...

    @property
    def backward(self) -> Callable[..., Tensor]: ...


def _triton() -> _Inverse:
    from laplacianformer.ops.newton_schulz import triton

    return triton


BACKENDS: Backends[_Inverse] = Backends("newton_schulz", cpu=cpu, triton=_triton, reference=reference)


def _inverse_composition(w: Tensor, iterations: int, eps: float, start: str, gradient: str, backend: str) -> Tensor:
    if gradient == "implicit":
        x = reference.forward(w.detach(), iterations, eps, start).to(accumulation_dtype(w.dtype))
        change = (w - w.detach()).to(x.dtype) @ x  # zero, with a derivative: X (I + dW X)^-1 has that of an inverse
        return (x @ torch.linalg.inv_ex(change + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device))[0]).to(w.dtype)
    return reference.forward(w, iterations, eps, start)


def _gradient_composition(grad: Tensor, w: Tensor, iterations: int, eps: float, start: str, backend: str) -> Tensor:
    return reference.backward(grad, w, iterations, eps, start)


@registered("laplacianformer::newton_schulz", _inverse_composition)
def _inverse(w: Tensor, iterations: int, eps: float, start: str, gradient: str, backend: str) -> Tensor:
    with without_autocast(w.device):
        return BACKENDS.choose(backend, w).forward(w, iterations, eps, start)


@registered("laplacianformer::newton_schulz_backward", _gradient_composition)
def _inverse_backward(grad: Tensor, w: Tensor, iterations: int, eps: float, start: str, backend: str) -> Tensor:
    with without_autocast(w.device):
        return BACKENDS.choose(backend, grad, w).backward(grad, w, iterations, eps, start)


@_inverse.register_fake
def _(w: Tensor, iterations: int, eps: float, start: str, gradient: str, backend: str) -> Tensor:
    return w.new_empty(w.shape)


@_inverse_backward.register_fake
def _(grad: Tensor, w: Tensor, iterations: int, eps: float, start: str, backend: str) -> Tensor:
    return w.new_empty(w.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    w, ctx.iterations, ctx.eps, ctx.start, ctx.gradient, ctx.backend = inputs
    ctx.save_for_backward(w if ctx.gradient == "exact" else output)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None, None]:
    (saved,) = ctx.saved_tensors
    if ctx.gradient == "exact":
        dw = _inverse_backward(grad, saved, ctx.iterations, ctx.eps, ctx.start, ctx.backend)
    else:
        x = saved.mT.to(accumulation_dtype(saved.dtype))
        with without_autocast(x.device), full_products(x.device):
            dw = -(x @ grad.to(x.dtype) @ x).to(saved.dtype)
    return dw, None, None, None, None, None


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, w, *ctx.settings = inputs
    ctx.save_for_backward(grad, w)


def _differentiate_again(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    with without_autocast(grad.device):
        pull_back = torch.func.vjp(lambda *tensors: _gradient_composition(*tensors, *ctx.settings), *ctx.saved_tensors)[
            1
        ]
        return *pull_back(grad), None, None, None, None


_inverse.register_autograd(_differentiate, setup_context=_save)
_inverse_backward.register_autograd(_differentiate_again, setup_context=_save_gradient)


@register_flop_formula(torch.ops.laplacianformer.newton_schulz)
def _(w_shape: Any, iterations: int, *args: Any, **kwargs: Any) -> int:
    """Two matrix products per step."""
    return 4 * iterations * torch.Size(w_shape).numel() * w_shape[-1]


@register_flop_formula(torch.ops.laplacianformer.newton_schulz_backward)
def _(grad_shape: Any, w_shape: Any, iterations: int, *args: Any, **kwargs: Any) -> int:
    """Two products per step to recompute the iterates (but the last), and five for its adjoint."""
    return (14 * iterations - 4) * torch.Size(w_shape).numel() * w_shape[-1]
