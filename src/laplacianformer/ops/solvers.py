"""Solvers other than Newton-Schulz, each matrix on its own, in plain PyTorch."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from laplacianformer.ops import _check as check
from laplacianformer.ops._precision import accumulation_dtype, promote, under_autocast, without_autocast
from laplacianformer.ops._registered import registered


def conjugate_gradient(w: Tensor, rhs: Tensor, iterations: int, eps: float) -> Tensor:
    """Solve (w + eps I) x = rhs by conjugate gradients from zero, for symmetric positive definite w + eps I.

    Args:
        w: (..., m, m). Leading dimensions of w and rhs broadcast against each other.
        rhs: (..., m, v); each column is a system of its own.
        iterations: steps; m of them are exact in exact arithmetic. A column that has converged no longer changes.
        eps: added to the diagonal.

    Returns:
        (..., m, v), in the wider dtype (float32 under autocast). O(iterations m^2 v). The gradient is that of
        the solution, by as many steps again: right at convergence.
    """
    check.iterations("conjugate_gradient", iterations)
    w, rhs, dtype = _system("conjugate_gradient", w, rhs, eps)
    return _conjugate_gradient(_add_to_diagonal(w, eps), rhs, iterations).to(dtype)


def _exact(a: Tensor, rhs: Tensor, iterations: int) -> Tensor:
    """The same for derivatives of every order: what the steps find is the exact solution for another right-hand side,
    whose distance from `rhs` is constant."""
    fixed, given = a.detach(), rhs.detach()
    found = _steps(fixed, given, iterations)
    return torch.linalg.solve_ex(a, rhs + (fixed @ found - given))[0]


@registered("laplacianformer::conjugate_gradient", _exact)
def _conjugate_gradient(a: Tensor, rhs: Tensor, iterations: int) -> Tensor:
    with without_autocast(a.device):
        return _steps(a, rhs, iterations)


def _steps(a: Tensor, rhs: Tensor, iterations: int) -> Tensor:
    x = rhs.new_zeros(rhs.shape)
    direction = residual = rhs
    energy = residual.square().sum(-2, keepdim=True)
    for _ in range(iterations):
        image = a @ direction
        step = _ratio(energy, (direction * image).sum(-2, keepdim=True))
        x = x + step * direction  # not in place, which vmap would not take
        residual = residual - step * image
        previous, energy = energy, residual.square().sum(-2, keepdim=True)
        direction = residual + _ratio(energy, previous) * direction
    return x


@_conjugate_gradient.register_fake
def _(a: Tensor, rhs: Tensor, iterations: int) -> Tensor:
    return rhs.new_empty(rhs.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, _, ctx.iterations = inputs
    ctx.save_for_backward(a, output)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    # Not through the steps: their gradient divides by residuals, which are zero or noise after convergence.
    a, x = ctx.saved_tensors
    drhs = _conjugate_gradient(a, grad, ctx.iterations)
    with without_autocast(a.device):
        return -drhs @ x.mT, drhs, None


_conjugate_gradient.register_autograd(_differentiate, setup_context=_save)


@register_flop_formula(torch.ops.laplacianformer.conjugate_gradient)
def _(a_shape: Any, rhs_shape: Any, iterations: int, *args: Any, **kwargs: Any) -> int:
    """One matrix product per step."""
    return 2 * iterations * torch.Size(a_shape).numel() * rhs_shape[-1]


def ridge_solve(w: Tensor, rhs: Tensor, eps: float) -> Tensor:
    """The x that minimises |w x - rhs|^2 + eps |x|^2: a pseudo-inverse for any square w.

    Args:
        w: (..., m, m). Leading dimensions of w and rhs broadcast against each other.
        rhs: (..., m, v).
        eps: ridge; the pseudo-inverse's solution as it goes to 0.

    Returns:
        (..., m, v), in the wider dtype (float32 under autocast). O(m^3), by Cholesky on the normal equations.
    """
    w, rhs, dtype = _system("ridge_solve", w, rhs, eps)
    with without_autocast(w.device):
        x = _cholesky(_add_to_diagonal(w.mT @ w, eps), w.mT @ rhs)
    return x.to(dtype)


def cholesky_solve(w: Tensor, rhs: Tensor, eps: float) -> Tensor:
    """Solve (w + eps I) x = rhs exactly, for symmetric positive definite w + eps I.

    Args:
        w: (..., m, m). Leading dimensions of w and rhs broadcast against each other.
        rhs: (..., m, v).
        eps: added to the diagonal.

    Returns:
        (..., m, v), in the wider dtype (float32 under autocast); NaN for a matrix that is not positive
        definite. O(m^3).
    """
    w, rhs, dtype = _system("cholesky_solve", w, rhs, eps)
    with without_autocast(w.device):
        x = _cholesky(_add_to_diagonal(w, eps), rhs)
    return x.to(dtype)


def _system(op: str, w: Tensor, rhs: Tensor, eps: float) -> tuple[Tensor, Tensor, torch.dtype]:
    """Checked, broadcast and in the dtype that accumulates; and the dtype of the result."""
    check.tensors(op, w=w, rhs=rhs)
    check.square(op, w)
    check.not_negative(op, eps=eps)
    if w.shape[-1] != rhs.shape[-2]:
        raise ValueError(f"{op}: w and rhs must have the same number of rows, got {tuple(w.shape)}, {tuple(rhs.shape)}")
    w, rhs = promote(*under_autocast(w, rhs, dtype=torch.float32))
    w, rhs = check.broadcast_batch(op, w=w, rhs=rhs)
    dtype = accumulation_dtype(w.dtype)
    return w.to(dtype), rhs.to(dtype), w.dtype


def _add_to_diagonal(w: Tensor, eps: float) -> Tensor:
    return w + eps * torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)


def _cholesky(a: Tensor, rhs: Tensor) -> Tensor:
    # cholesky_ex neither raises for the whole batch nor waits for the device.
    factor, info = torch.linalg.cholesky_ex(a)
    x = torch.cholesky_solve(rhs, factor)
    return torch.where((info == 0)[..., None, None], x, torch.nan)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """0 where the denominator is 0: there the column has converged."""
    return torch.where(denominator == 0, 0, numerator / denominator)
