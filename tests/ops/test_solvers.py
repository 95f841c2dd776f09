import math

import pytest
import torch

from laplacianformer import ops
from tests.ops.helpers import DTYPES, assert_close, gradients, in_float64, kernel_matrix, layouts, leaves, regularised
from tests.pairwise import pairwise

EPS = 1e-2


def symmetric(w):
    return (w + w.mT) / 2


def conjugate_gradient(w, rhs, eps=EPS, iterations=30):
    return ops.conjugate_gradient(symmetric(w), rhs, iterations, eps)


def cholesky_solve(w, rhs, eps=EPS):
    return ops.cholesky_solve(symmetric(w), rhs, eps)


def ridge_solve(w, rhs, eps=EPS):
    return ops.ridge_solve(w, rhs, eps)


def solution(w, rhs, eps=EPS):
    return torch.linalg.solve(regularised(symmetric(w), eps), rhs)


def ridge_solution(w, rhs, eps=EPS):
    """Least squares with the rows sqrt(eps) I below w and zeros below rhs."""
    m = w.shape[-1]
    batch = torch.broadcast_shapes(w.shape[:-2], rhs.shape[:-2])
    below = (math.sqrt(eps) * torch.eye(m, dtype=w.dtype)).expand(*batch, m, m)
    tall = torch.cat([w.expand(*batch, m, m), below], -2)
    return torch.linalg.pinv(tall) @ torch.cat(
        [rhs.expand(*batch, *rhs.shape[-2:]), torch.zeros_like(rhs).expand(*batch, *rhs.shape[-2:])], -2
    )


SOLVERS = {
    "conjugate_gradient": (conjugate_gradient, solution),
    "cholesky_solve": (cholesky_solve, solution),
    "ridge_solve": (ridge_solve, ridge_solution),
}
every_solver = pytest.mark.parametrize(("solver", "oracle"), SOLVERS.values(), ids=SOLVERS)


@pairwise(
    {"solver, oracle": SOLVERS, "batch, m, v": [((), 1, 1), ((2,), 7, 3), ((2, 3), 13, 5)], "dtype": DTYPES},
)
def test_values_and_gradients_match_the_definition(solver, oracle, batch, m, v, dtype):
    # Conditioned by eps: the error of a solution is the unit of the arithmetic times the condition number (about 16).
    w = kernel_matrix(m, 4, *batch).to(dtype).requires_grad_()
    inputs = w, leaves((*batch, m, v), dtype=dtype)[0]
    exact = in_float64(inputs)
    grad = torch.randn(*batch, m, v).to(dtype)
    ours = solver(*inputs, 0.5), *gradients(lambda w, rhs: solver(w, rhs, 0.5), inputs, grad)
    theirs = oracle(*exact, 0.5), *gradients(lambda w, rhs: oracle(w, rhs, 0.5), exact, grad)
    assert ours[0].dtype == dtype
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.detach(), b.detach(), 16 * b.abs().max().item())


@every_solver
def test_first_and_second_derivatives_match_finite_differences(solver, oracle):
    inputs = kernel_matrix(4, 4, 2).requires_grad_(), *leaves((2, 4, 2))
    function = lambda w, rhs: solver(w, rhs, 0.1)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@every_solver
@pytest.mark.parametrize(("w_batch", "rhs_batch"), [((2, 1), (3,)), ((), (4,)), ((4,), ()), ((3, 1), (1, 2))])
def test_leading_dimensions_broadcast_and_gradients_reduce(solver, oracle, w_batch, rhs_batch):
    inputs = kernel_matrix(5, 4, *w_batch).requires_grad_(), *leaves((*rhs_batch, 5, 2))
    out = solver(*inputs)
    assert_close(out.detach(), oracle(*inputs).detach(), budget=1e-10)
    for a, b in zip(gradients(solver, inputs, out), gradients(oracle, inputs, out), strict=True):
        assert_close(a, b, budget=1e-10)


@every_solver
@pytest.mark.parametrize("layout", ["transposed", "strided", "permuted"])
def test_memory_layout_does_not_change_the_result(solver, oracle, layout):
    w, rhs = kernel_matrix(5, 4, 2), torch.randn(2, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(solver(layouts(w)[layout], layouts(rhs)[layout]), solver(w, rhs))


@every_solver
@pytest.mark.parametrize(("batch", "m", "v"), [((0,), 3, 2), ((2,), 3, 0), ((2,), 0, 2)])
def test_empty_inputs_give_empty_results(solver, oracle, batch, m, v):
    w, rhs = leaves((*batch, m, m), (*batch, m, v))
    if w.numel():
        w = regularised(torch.zeros_like(w), 1.0).requires_grad_()
    out = solver(w, rhs)
    out.sum().backward()
    assert out.shape == (*batch, m, v)
    assert w.grad.shape == w.shape


@every_solver
@pytest.mark.parametrize("which", [0, 1], ids=["w", "rhs"])
def test_nan_in_one_matrix_stays_in_that_matrix(solver, oracle, which):
    tensors = [kernel_matrix(5, 4, 3), torch.randn(3, 5, 2, dtype=torch.float64)]
    clean = [tensor.clone().requires_grad_() for tensor in tensors]
    tensors[which][1, 2, 1] = math.nan
    poisoned = [tensor.requires_grad_() for tensor in tensors]
    out = solver(*poisoned)
    assert out[1].isnan().any()
    assert torch.equal(out[::2], solver(*clean)[::2])
    grad = torch.ones(3, 5, 2)
    for a, b in zip(gradients(solver, poisoned, grad), gradients(solver, clean, grad), strict=True):
        assert torch.equal(a[::2], b[::2])


def test_cholesky_gives_nan_only_for_the_matrix_that_is_not_positive_definite():
    w, rhs = kernel_matrix(5, 4, 3), torch.randn(3, 5, 2, dtype=torch.float64)
    expected = solution(w, rhs)
    w[1] = -w[1]
    out = ops.cholesky_solve(w, rhs, EPS)
    assert out[1].isnan().all()
    assert_close(out[::2], expected[::2], budget=1e-10)


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_ridge_tends_to_the_pseudo_inverse(rank):
    left, right = torch.randn(2, 5, rank, dtype=torch.float64)
    w, rhs = left @ right.mT, torch.randn(5, 2, dtype=torch.float64)
    assert_close(ops.ridge_solve(w, rhs, 1e-9), torch.linalg.pinv(w, rtol=1e-9) @ rhs, budget=1e-5)


def test_newton_schulz_conjugate_gradient_and_cholesky_agree_at_convergence():
    w, rhs = kernel_matrix(20, 4, 3), torch.randn(3, 20, 4, dtype=torch.float64)
    exact = torch.linalg.solve(regularised(w, EPS), rhs)
    for start in ("transpose", "identity"):
        assert_close(ops.newton_schulz(w, 40, EPS, start=start) @ rhs, exact, budget=1e-10)
    assert_close(ops.conjugate_gradient(w, rhs, 40, EPS), exact, budget=1e-10)
    assert_close(ops.cholesky_solve(w, rhs, EPS), exact, budget=1e-10)


def test_each_step_of_conjugate_gradient_reduces_the_error():
    """In the norm of A, in which CG is optimal; m steps are exact."""
    w, rhs = kernel_matrix(8), torch.randn(8, 3, dtype=torch.float64)
    a, exact = regularised(w, EPS), solution(w, rhs)
    errors = [ops.conjugate_gradient(w, rhs, k, EPS) - exact for k in range(1, 9)]
    energies = torch.stack([(error * (a @ error)).sum(-2) for error in errors])
    assert (energies[1:] < energies[:-1]).all()
    assert (energies[-1] < 1e-16).all()
    assert (energies[-3] > 1e-12).all()


@pairwise(
    {
        "case": ["kernel", "identity", "equal landmarks", "no right-hand side", "one column zero"],
        "iterations": [8, 16, 100],
        "dtype": [torch.float32, torch.float64],
    }
)
def test_conjugate_gradient_may_take_more_steps_than_it_needs(case, iterations, dtype):
    """Once it has converged its residual is rounding noise or zero; values and gradients stay those of the solution."""
    w = {"identity": torch.eye(8), "equal landmarks": torch.ones(8, 8)}.get(case, kernel_matrix(8))
    (rhs,) = leaves((8, 3))
    if case == "no right-hand side":
        rhs = torch.zeros_like(rhs)
    if case == "one column zero":
        rhs = rhs * torch.tensor([1.0, 0.0, 1.0])
    inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in (w, rhs)]
    exact, grad = in_float64(inputs), torch.randn(8, 3, dtype=dtype)
    function = lambda w, rhs: conjugate_gradient(w, rhs, 0.1, iterations)
    oracle = lambda w, rhs: solution(w, rhs, 0.1)
    ours = function(*inputs), *gradients(function, inputs, grad)
    theirs = oracle(*exact), *gradients(oracle, exact, grad)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.detach(), b.detach(), max(1.0, b.abs().max().item()), budget=1e-4)
