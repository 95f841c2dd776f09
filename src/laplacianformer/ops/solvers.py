"""Solvers other than Newton-Schulz, each matrix on its own. Plain PyTorch, differentiable by autograd."""

import torch
from torch import Tensor

from laplacianformer.ops import check
from laplacianformer.ops.precision import accumulation_dtype, promote, under_autocast, without_autocast


def conjugate_gradient(w: Tensor, rhs: Tensor, iterations: int, eps: float) -> Tensor:
    """Solve (w + eps I) x = rhs by conjugate gradients from zero, for symmetric positive definite w + eps I.

    Args:
        w: (..., m, m). Leading dimensions of w and rhs broadcast against each other.
        rhs: (..., m, v); each column is a system of its own.
        iterations: steps; m of them are exact in exact arithmetic. A column that has converged stands still.
        eps: added to the diagonal.

    Returns:
        (..., m, v), in the wider dtype (float32 under autocast). O(iterations m^2 v).
    """
    check.iterations("conjugate_gradient", iterations)
    w, rhs, dtype = _system("conjugate_gradient", w, rhs, eps)
    with without_autocast(w.device):
        a = _add_to_diagonal(w, eps)
        # Columns of size one: no square can underflow, and convergence is one number for all of them.
        size = rhs.detach().abs().sum(-2, keepdim=True)
        size = torch.where(size == 0, 1, size)
        converged = torch.finfo(rhs.dtype).eps ** 2
        x = torch.zeros_like(rhs)
        direction = residual = rhs / size
        energy = residual.square().sum(-2, keepdim=True)
        for _ in range(iterations):
            still = energy <= converged
            image = a @ direction
            step = _ratio(energy, (direction * image).sum(-2, keepdim=True), still)
            x = x + step * direction
            residual = residual - step * image
            previous, energy = energy, residual.square().sum(-2, keepdim=True)
            direction = residual + _ratio(energy, previous, still) * direction
        x = x * size
    return x.to(dtype)


def ridge_solve(w: Tensor, rhs: Tensor, eps: float) -> Tensor:
    """The x that minimises |w x - rhs|^2 + eps |x|^2: a pseudo-inverse that bears any square w.

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
    w, rhs = check.broadcast_batch(op, ("w", w), ("rhs", rhs))
    dtype = accumulation_dtype(w.dtype)
    return w.to(dtype), rhs.to(dtype), w.dtype


def _add_to_diagonal(w: Tensor, eps: float) -> Tensor:
    return w + eps * torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)


def _cholesky(a: Tensor, rhs: Tensor) -> Tensor:
    # cholesky_ex neither raises for the whole batch nor waits for the device.
    factor, info = torch.linalg.cholesky_ex(a)
    x = torch.cholesky_solve(rhs, factor)
    return torch.where((info == 0)[..., None, None], x, torch.nan)


def _ratio(numerator: Tensor, denominator: Tensor, still: Tensor) -> Tensor:
    """0 in columns that stand still or have nothing to divide by, in the gradient too."""
    zero = still | (denominator == 0)
    return torch.where(zero, 0, numerator / torch.where(zero, 1, denominator))
