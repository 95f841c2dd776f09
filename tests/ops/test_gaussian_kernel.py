import math

import pytest
import torch

from laplacianformer import ops
from tests.ops.helpers import DTYPES, assert_close, assert_matches, gaussian, gradients, layouts, leaves

SCALE = 4.0


def kernel(x, y):
    return ops.gaussian_kernel(x, y, SCALE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("batch", "n", "m", "d"), [((), 1, 1, 1), ((2,), 5, 3, 7), ((2, 3), 17, 1, 33), ((1,), 67, 49, 32)]
)
def test_values_and_gradients_match_the_definition(batch, n, m, d, dtype):
    inputs = leaves((*batch, n, d), (*batch, m, d), dtype=dtype)
    assert_matches(kernel, lambda x, y: gaussian(x, y, SCALE), inputs, terms=67)


def test_first_and_second_derivatives_match_finite_differences():
    inputs = leaves((2, 4, 3), (2, 5, 3))
    assert torch.autograd.gradcheck(kernel, inputs)
    assert torch.autograd.gradgradcheck(kernel, inputs)


@pytest.mark.parametrize("offset", [100.0, 1000.0])
def test_a_shared_offset_loses_no_accuracy(offset):
    """|x|^2 + |y|^2 - 2 x'y would be wrong by offset^2 times the unit of float32: by 0.1 and more."""
    x, y = (torch.randn(7, 32) + offset for _ in range(2))
    assert_close(kernel(x, y), gaussian(x.double(), y.double(), SCALE), 1.0, budget=2**-18)


def test_equal_points_have_gradient_near_zero():
    x = torch.randn(3, 1, 5, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    out = kernel(x, y)
    for grad in torch.autograd.grad(out.sum(), (x, y)):
        assert grad.abs().max() < 1e-15
    assert_close(out.detach(), torch.ones(3, 1, 1, dtype=torch.float64))


@pytest.mark.parametrize(("x_batch", "y_batch"), [((2, 1), (3,)), ((), (2, 3)), ((4, 1, 1), (1, 3, 2))])
def test_leading_dimensions_broadcast_and_gradients_reduce(x_batch, y_batch):
    inputs = leaves((*x_batch, 5, 3), (*y_batch, 4, 3))
    assert_matches(kernel, lambda x, y: gaussian(x, y, SCALE), inputs, terms=8)


@pytest.mark.parametrize("layout", ["transposed", "strided", "permuted"])
def test_memory_layout_does_not_change_the_result(layout):
    x, y = torch.randn(2, 5, 3), torch.randn(2, 4, 3)
    torch.testing.assert_close(kernel(layouts(x)[layout], layouts(y)[layout]), kernel(x, y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("batch", "n", "m", "d"), [((2,), 0, 3, 4), ((2,), 3, 0, 4), ((0,), 3, 2, 4), ((2,), 3, 2, 0), ((), 0, 0, 0)]
)
def test_empty_inputs_give_empty_or_constant_results(batch, n, m, d):
    assert_matches(kernel, lambda x, y: gaussian(x, y, SCALE), leaves((*batch, n, d), (*batch, m, d)))


@pytest.mark.parametrize("which", [0, 1], ids=["x", "y"])
def test_nan_in_one_matrix_stays_in_that_matrix(which):
    tensors = [torch.randn(3, 5, 4), torch.randn(3, 6, 4)]
    clean = [tensor.clone().requires_grad_() for tensor in tensors]
    tensors[which][1, 2, 3] = math.nan
    poisoned = [tensor.requires_grad_() for tensor in tensors]
    assert kernel(*poisoned)[1].isnan().any()
    assert torch.equal(kernel(*poisoned)[::2], kernel(*clean)[::2])
    for a, b in zip(*(gradients(kernel, inputs, torch.ones(3, 5, 6)) for inputs in (poisoned, clean)), strict=True):
        assert torch.equal(a[::2], b[::2])
