import math

import pytest
import torch

from laplacianformer import ops
from tests.ops.helpers import BUDGET, DTYPES, assert_close, gradients, kernel_matrix, layouts, regularised

EPS = 1e-2


def function(w):
    return ops.inverse_sqrt((w + w.mT) / 2, EPS)


def low_rank(m, rank):
    x = torch.randint(-2, 3, (m, rank)).double()  # exact in every dtype: rounding could make it indefinite
    return x @ x.mT


CASES = {
    "kernel": lambda: kernel_matrix(9, 4, 2),
    "equal eigenvalues": lambda: torch.eye(5, dtype=torch.float64),
    "equal landmarks": lambda: torch.ones(6, 6, dtype=torch.float64),
    "singular": lambda: low_rank(7, 2),
    "m = 1": lambda: torch.ones(1, 1, dtype=torch.float64),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_is_the_symmetric_positive_root_of_the_inverse(case, dtype):
    w = CASES[case]().to(dtype)
    out = ops.inverse_sqrt(w, EPS)
    assert out.dtype == dtype
    root = out.double()
    assert_close(out, root.mT, magnitude=10.0)
    assert torch.linalg.eigvalsh(root).min() > 0
    # The root is at most 1 / sqrt(EPS) = 10 in norm, and its error is doubled in the square. Eigenvalues are wrong
    # by the unit of the arithmetic times the largest, which counts against EPS.
    a = regularised(w.double(), EPS)
    unit = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    budget = 4 * BUDGET[dtype] + 4 * unit * torch.linalg.cond(a).max().item()
    assert_close(root @ root, torch.linalg.inv(a), magnitude=100.0, budget=budget)


@pytest.mark.parametrize("case", CASES)
def test_gradient_matches_finite_differences_also_at_equal_eigenvalues(case):
    # At a singular matrix the clamp of negative eigenvalues has a corner: gradcheck needs a neighbourhood without.
    w = CASES[case]() + (0.1 * torch.eye(7, dtype=torch.float64) if case == "singular" else 0)
    if case == "equal landmarks":
        w = w + 0.1 * torch.eye(6, dtype=torch.float64)
    assert torch.autograd.gradcheck(function, w.requires_grad_())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradient_keeps_the_budget_of_every_dtype(dtype):
    w, grad = kernel_matrix(6, 4, 2).to(dtype), torch.randn(2, 6, 6).to(dtype)
    (ours,) = gradients(function, [w.requires_grad_()], grad)
    (theirs,) = gradients(function, [w.detach().double().requires_grad_()], grad)
    assert ours.dtype == dtype
    assert_close(ours, theirs, magnitude=16 * theirs.abs().max().item())


@pytest.mark.parametrize("noise", [0.0, -1e-9])
def test_eigenvalues_that_rounding_made_negative_do_no_harm(noise):
    w = (torch.ones(6, 6, dtype=torch.float64) + noise * torch.eye(6)).requires_grad_()
    out = ops.inverse_sqrt(w, 1e-10)
    out.sum().backward()
    assert out.isfinite().all()
    assert w.grad.isfinite().all()
    assert out.abs().max() < 2e5


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_in_one_matrix_stays_in_that_matrix_and_shows_in_its_gradient(poison):
    clean = kernel_matrix(5, 4, 3)
    poisoned = clean.clone()
    poisoned[1, 2, 3] = poisoned[1, 3, 2] = poison
    out = ops.inverse_sqrt(poisoned, EPS)
    assert out[1].isnan().all()
    assert torch.equal(out[::2], ops.inverse_sqrt(clean, EPS)[::2])
    grad = torch.randn_like(clean)
    ours, theirs = (gradients(function, [w.requires_grad_()], grad)[0] for w in (poisoned, clean))
    assert torch.equal(ours[::2], theirs[::2])
    assert ours[1].isnan().all()


@pytest.mark.parametrize("shape", [(0, 5, 5), (2, 0, 0)])
def test_empty_inputs_give_empty_results(shape):
    w = torch.zeros(shape, requires_grad=True)
    out = ops.inverse_sqrt(w, EPS)
    out.sum().backward()
    assert out.shape == w.grad.shape == shape


@pytest.mark.parametrize("layout", ["transposed", "strided", "permuted"])
def test_memory_layout_does_not_change_the_result(layout):
    w, grad = kernel_matrix(5, 4, 2), torch.randn(2, 5, 5, dtype=torch.float64)
    plain, moved = w.clone().requires_grad_(), layouts(w)[layout].requires_grad_()
    torch.testing.assert_close(function(moved), function(plain))
    torch.testing.assert_close(*(gradients(function, [w], grad)[0] for w in (moved, plain)))


@pytest.mark.parametrize("case", CASES)
def test_second_derivatives_match_finite_differences_also_at_equal_eigenvalues(case):
    w = CASES[case]() + 0.1 * torch.eye(CASES[case]().shape[-1], dtype=torch.float64)
    assert torch.autograd.gradgradcheck(function, w.requires_grad_(), fast_mode=True)
