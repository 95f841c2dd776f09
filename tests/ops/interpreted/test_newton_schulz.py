"""newton_schulz on the triton backend against the same steps in float64, in the interpreter."""

import math

import pytest
import torch

from laplacianformer import ops
from tests.ops.helpers import assert_close, gradients, kernel_matrix, layouts

STARTS = ("transpose", "identity")
# Against float64 steps from the rounded matrix: float32 in 128 terms and a few steps; half precision rounds once more.
BUDGETS = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def inverse(start, iterations, backend="triton"):
    return lambda w: ops.newton_schulz(w, iterations, start=start, backend=backend)


def compare(w, start, iterations):
    exact, grad = w.detach().double().requires_grad_(), torch.randn(w.shape).to(w.dtype)
    ours, theirs = inverse(start, iterations), inverse(start, iterations, "reference")
    assert_close(ours(w).detach(), theirs(exact).detach(), budget=BUDGETS[w.dtype])
    (actual,), (expected,) = gradients(ours, [w], grad), gradients(theirs, [exact], grad)
    assert_close(actual, expected, budget=BUDGETS[w.dtype])


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("m", "iterations"), [(1, 2), (5, 1), (5, 6), (16, 2), (17, 3), (49, 6), (64, 1)])
def test_values_and_gradients_are_those_of_the_steps_that_ran(m, start, iterations):
    compare(kernel_matrix(m, 4).float().requires_grad_(), start, iterations)


@pytest.mark.parametrize(("m", "start"), [(65, "identity"), (128, "transpose"), (130, "identity")])
def test_larger_matrices(m, start):
    compare(kernel_matrix(m, 4).float().requires_grad_(), start, 2)


@pytest.mark.parametrize("dtype", BUDGETS, ids=str)
def test_every_dtype_and_a_matrix_that_is_not_symmetric(dtype):
    compare((torch.rand(2, 9, 9) + 3 * torch.eye(9)).to(dtype).requires_grad_(), "transpose", 2)


@pytest.mark.parametrize("start", STARTS)
def test_rows_that_tie_for_the_norm_and_finite_differences_in_float64(start):
    w = torch.ones(3, 3, dtype=torch.float64)
    w = (w + torch.diag(torch.tensor([0.5, 0.6, 0.7]))).requires_grad_()
    assert torch.autograd.gradcheck(inverse(start, 3), w)
    compare(torch.ones(7, 7).requires_grad_(), start, 3)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
def test_nan_in_one_matrix_stays_in_that_matrix(start, poison):
    clean, grad, function = kernel_matrix(5, 4, 3).float(), torch.randn(3, 5, 5), inverse(start, 2)
    poisoned = clean.clone()
    poisoned[1, 2, 3] = poison
    assert function(poisoned)[1].isnan().any()
    assert torch.equal(function(poisoned)[::2], function(clean)[::2])
    ours, theirs = (gradients(function, [w.requires_grad_()], grad)[0] for w in (poisoned, clean))
    assert ours[1].isnan().any()
    assert torch.equal(ours[::2], theirs[::2])


@pytest.mark.parametrize("layout", ["transposed", "expanded"])
def test_memory_layout_does_not_change_a_bit(layout):
    w, grad = torch.rand(2, 5, 5) + 3 * torch.eye(5), torch.randn(2, 5, 5)
    move = lambda t: t[:1].expand(t.shape) if layout == "expanded" else layouts(t)[layout]
    function, results = inverse("transpose", 2), []
    for w_, g in ((move(w), move(grad)), (move(w).contiguous(), move(grad).contiguous())):
        w_ = w_.detach().requires_grad_()
        results.append([function(w_), *gradients(function, [w_], g)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("shape", [(0, 5, 5), (2, 0, 3, 3)])
def test_empty_batch(shape):
    w = torch.zeros(shape, requires_grad=True)
    for start in STARTS:
        out = inverse(start, 3)(w)
        out.sum().backward()
        assert out.shape == w.grad.shape == shape


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(("m", "start"), [(9, "transpose"), (9, "identity"), (49, "identity"), (65, "identity")])
def test_every_element_is_written_and_padding_is_not_read(m, start):
    compare(kernel_matrix(m, 4).float().requires_grad_(), start, 2)


def test_same_inputs_give_the_same_bits():
    w, grad, function = kernel_matrix(33, 4).float().requires_grad_(), torch.randn(33, 33), inverse("identity", 2)
    first, second = ([function(w), *gradients(function, [w], grad)] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
