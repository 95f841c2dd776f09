"""laplacian_kernel on the triton backend against float64, in the interpreter."""

import math

import pytest
import torch

from laplacianformer import ops
from laplacianformer.ops import _triton_support as support
from laplacianformer.ops.laplacian_kernel import reference
from laplacianformer.ops.laplacian_kernel import triton as kernels
from tests.ops.helpers import DTYPES, assert_matches, gradients, laplacian, layouts, leaves

# Rows of a panel beyond the last hold anything; numpy, which the interpreter computes with, warns about it.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

SCALE = 3.0


def kernel(x, y):
    return ops.laplacian_kernel(x, y, SCALE, backend="triton")


def compare(*shapes, dtype=torch.float32, terms=1):
    assert_matches(kernel, lambda x, y: laplacian(x, y, SCALE), leaves(*shapes, dtype=dtype), terms=terms)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (5, 3, 7), (3, 67, 17)])
def test_values_and_gradients_match_the_definition(n, m, d, dtype):
    compare((2, n, d), (2, m, d), dtype=dtype, terms=max(n, m))


@pytest.mark.parametrize(("n", "m", "d"), [(131, 67, 2), (2, 129, 3), (67, 1, 33), (3, 2, 256), (64, 64, 1)])
def test_sizes_around_tiles_and_panels(n, m, d):
    assert_matches(
        lambda x, y: ops.laplacian_kernel(x, y, 40.0, backend="triton"),
        lambda x, y: laplacian(x, y, 40.0),
        leaves((n, d), (m, d), dtype=torch.float32),
        terms=max(n, m, d),
    )


@pytest.mark.parametrize(("x_batch", "y_batch"), [((2, 1), (2,)), ((), (3,))])
def test_leading_dimensions_broadcast_and_gradients_reduce(x_batch, y_batch):
    compare((*x_batch, 3, 2), (*y_batch, 4, 2), terms=6)


@pytest.mark.parametrize(
    ("batch", "n", "m", "d"), [((2,), 0, 3, 4), ((2,), 3, 0, 4), ((0,), 3, 2, 4), ((2,), 3, 2, 0), ((), 0, 0, 0)]
)
def test_empty_inputs_give_empty_or_constant_results(batch, n, m, d):
    x, y = leaves((*batch, n, d), (*batch, m, d), dtype=torch.float32)
    out = kernel(x, y)
    out.sum().backward()
    assert torch.equal(out, laplacian(x, y, SCALE))
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(y.grad, torch.zeros_like(y))


@pytest.mark.parametrize("layout", ["transposed", "strided", "permuted", "expanded"])
def test_memory_layout_does_not_change_a_bit(layout):
    x, y, grad = torch.randn(2, 5, 3), torch.randn(2, 4, 3), torch.randn(2, 5, 4)
    move = lambda t: t[:1, :1].expand(t.shape) if layout == "expanded" else layouts(t)[layout]
    moved = [move(t) for t in (x, y, grad)]
    plain = [t.clone(memory_format=torch.contiguous_format) for t in moved]
    results = []
    for a, b, g in (moved, plain):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        results.append([kernel(a, b), *gradients(kernel, [a, b], g)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_ties_have_no_gradient():
    """Bit for bit: a landmark against itself, and single features."""
    x = torch.randn(6, 5, dtype=torch.float64).round().requires_grad_()
    grad = torch.randn(6, 6, dtype=torch.float64)
    gram = lambda x: kernel(x, x)
    assert torch.equal(gradients(gram, [x], grad)[0], gradients(gram, [x], grad + 100 * torch.eye(6))[0])
    assert_matches(kernel, lambda x, y: laplacian(x, y, SCALE), [x, x.detach()[:4].clone().requires_grad_()], terms=6)


def test_gradient_matches_finite_differences():
    x, y = (2 * torch.randint(-3, 4, shape) + torch.rand(shape) * 0.5 for shape in ((2, 3, 2), (2, 2, 2)))
    inputs = x.double().requires_grad_(), (y.double() + 1).requires_grad_()
    assert torch.autograd.gradcheck(kernel, inputs, fast_mode=True)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(("n", "m", "d"), [(3, 2, 5), (70, 66, 2)])
def test_every_element_is_written_and_padding_is_not_read(n, m, d):
    compare((n, d), (m, d), terms=max(n, m))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_in_one_matrix_stays_in_that_matrix(poison):
    x, y = torch.randn(3, 5, 4), torch.randn(3, 6, 4)
    clean = gradients(kernel, [x.clone().requires_grad_(), y.clone().requires_grad_()], torch.ones(3, 5, 6))
    poisoned = x.clone()
    poisoned[1, 2, 3] = poison
    out = kernel(poisoned, y)
    assert out[1].isnan().any() == math.isnan(poison)
    assert torch.equal(out[::2], kernel(x, y)[::2])
    grads = gradients(kernel, [poisoned.requires_grad_(), y.clone().requires_grad_()], torch.ones(3, 5, 6))
    for a, b in zip(grads, clean, strict=True):
        assert torch.equal(a[::2], b[::2])
    assert grads[0][1].isnan().any() == math.isnan(poison)


def test_every_configuration_gives_the_same_bits(monkeypatch):
    """So autotuning, which chooses by time, does not change results from run to run."""
    inputs, grad = leaves((70, 5), (3, 5), dtype=torch.float32), torch.randn(70, 3)
    results = [[kernel(*inputs), *gradients(kernel, inputs, grad)]]
    assert len(kernels.FORWARD) > 1
    assert len(kernels.SIGNS) > 1
    for forward, signs in zip(kernels.FORWARD, kernels.SIGNS, strict=True):
        for tuner, options in ((kernels._forward, forward), (kernels._signs, signs)):
            constants = {name: value for name, value in options.items() if name != "num_warps"}
            monkeypatch.setattr(tuner.configs[0], "kwargs", constants)
        results.append([kernel(*inputs), *gradients(kernel, inputs, grad)])
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_the_gradient_in_several_tiles_of_bounded_memory(monkeypatch):
    inputs = leaves((2, 9, 3), (2, 7, 3))
    whole = gradients(kernel, inputs, torch.ones(2, 9, 7))
    monkeypatch.setattr(reference, "CPU_TILE_BYTES", 2 * 8 * 30)  # 30 pairs and fewer
    for a, b in zip(gradients(kernel, inputs, torch.ones(2, 9, 7)), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_sum_over_a_long_side_in_parts(monkeypatch):
    inputs, grad = leaves((2, 3), (195, 3)), torch.randn(2, 195, dtype=torch.float64)
    assert support.parts(1, 195) == 3
    cut = gradients(kernel, inputs, grad)
    monkeypatch.setattr(support, "PROGRAMS", 1)
    for a, b in zip(cut, gradients(kernel, inputs, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e40, 1e300])
def test_scales_beyond_float32(scale):
    rows = torch.tensor([[0.0], [1.0], [math.inf]])
    found = ops.laplacian_kernel(rows, rows[:2], scale, backend="triton")
    assert torch.equal(found, laplacian(rows.double(), rows[:2].double(), scale).float())
