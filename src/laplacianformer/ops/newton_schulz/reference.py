"""Newton-Schulz iteration for the inverse of A = W + eps I and its exact adjoint, in plain PyTorch.

X_{k+1} = X_k (2 I - A X_k),    so that    I - A X_{k+1} = (I - A X_k)^2
"""

import torch
from torch import Tensor

from laplacianformer.ops._precision import accumulation_dtype

# Identity start: X_0 = 1.5 / norminf(A) I. The spectrum of A X_0 lies in (0, 1.5], so every residual
# eigenvalue starts inside (-1, 1), and that of the largest eigenvalue inside [-0.5, 1).
IDENTITY_FACTOR = 1.5
# The authors' start: X_0 = 1.8 / (largest row sum of W)^2 A.
AUTHORS_FACTOR = 1.8


def check(*tensors: Tensor) -> str | None:
    return None


def forward(w: Tensor, iterations: int, eps: float, start: str) -> Tensor:
    a = regularised(w, eps)
    x = first(a, start, eps)
    for _ in range(iterations):
        x = _step(a, x)
    return x.to(w.dtype).contiguous()


def backward(grad: Tensor, w: Tensor, iterations: int, eps: float, start: str) -> Tensor:
    """The adjoint of the steps that ran, start included; iterates are recomputed: O(iterations m^2) memory."""
    a = regularised(w, eps)
    iterates = [first(a, start, eps)]
    for _ in range(iterations - 1):
        iterates.append(_step(a, iterates[-1]))

    grad_x = grad.to(a.dtype)
    grad_a = torch.zeros_like(a)
    for x in reversed(iterates):
        left, right = x.mT @ grad_x, grad_x @ x.mT
        grad_a = grad_a - left @ x.mT  # not in place, which vmap and derivatives of this would not take
        grad_x = 2 * grad_x - right @ a.mT - a.mT @ left
    return (grad_a + first_adjoint(grad_x, a, start, eps)).to(w.dtype).contiguous()


def residuals(w: Tensor, iterations: int, eps: float, start: str) -> Tensor:
    a = regularised(w, eps)
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    x = first(a, start, eps)
    norms = [torch.linalg.matrix_norm(identity - a @ x)]
    for _ in range(iterations):
        x = _step(a, x)
        norms.append(torch.linalg.matrix_norm(identity - a @ x))
    return torch.stack(norms) / max(1, a.shape[-1]) ** 0.5


def regularised(w: Tensor, eps: float) -> Tensor:
    a = w.to(accumulation_dtype(w.dtype))
    return a + eps * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def _step(a: Tensor, x: Tensor) -> Tensor:
    return 2 * x - x @ (a @ x)


def first(a: Tensor, start: str, eps: float) -> Tensor:
    """X_0. eps is what `a` has more than W, on whose row sums the authors' start depends."""
    rows = a.abs().sum(-1).amax(-1)[..., None, None]
    if start == "identity":
        return IDENTITY_FACTOR / rows * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    if start == "authors":
        return AUTHORS_FACTOR / (rows - eps) ** 2 * a
    columns = a.abs().sum(-2).amax(-1)[..., None, None]
    return a.mT / (rows * columns)


def first_adjoint(grad: Tensor, a: Tensor, start: str, eps: float) -> Tensor:
    rows, rows_grad = _norm_and_gradient(a, dim=-1)
    if start == "identity":
        along = grad.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return -IDENTITY_FACTOR / rows**2 * along * rows_grad
    if start == "authors":
        factor = AUTHORS_FACTOR / (rows - eps) ** 2
        return factor * (grad - 2 / (rows - eps) * (grad * a).sum((-2, -1), keepdim=True) * rows_grad)
    columns, columns_grad = _norm_and_gradient(a, dim=-2)
    product = rows * columns
    along = (grad * a.mT).sum((-2, -1), keepdim=True) / product
    return grad.mT / product - along * (rows_grad / rows + columns_grad / columns)


def _norm_and_gradient(a: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest absolute sum along `dim`, and its gradient, shared among sums that tie for it."""
    sums = a.abs().sum(dim, keepdim=True)
    norm = sums.amax((-2, -1), keepdim=True)
    largest = (sums == norm).to(a.dtype)
    return norm, a.sign() * largest / largest.sum((-2, -1), keepdim=True)
