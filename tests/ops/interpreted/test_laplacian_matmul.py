"""laplacian_matmul on the triton backend against float64, in the interpreter."""

import math

import pytest
import torch

from laplacianformer import ops
from laplacianformer.ops import _triton_support as triton_support
from laplacianformer.ops.laplacian_kernel.triton import weights_like
from tests.ops.helpers import DTYPES, assert_matches, gradients, laplacian, layouts, leaves

# Rows of a panel beyond the last hold anything; numpy, which the interpreter computes with, warns about it.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

SCALE = 3.0


def product(x, y, values):
    return ops.laplacian_matmul(x, y, values, SCALE, backend="triton")


def compare(*shapes, dtype=torch.float32, terms=1):
    oracle = lambda x, y, values: laplacian(x, y, SCALE) @ values
    assert_matches(product, oracle, leaves(*shapes, dtype=dtype), terms=terms)


# Float64 is the slowest by far and has the same masks.
@pytest.mark.parametrize(
    ("n", "m", "d", "v", "dtype"),
    [
        *((3, 67, 17, 33, dtype) for dtype in DTYPES),
        *((5, 3, 7, 2, dtype) for dtype in DTYPES if dtype != torch.float64),
        (1, 1, 1, 1, torch.float32),
    ],
    ids=str,
)
def test_values_and_gradients_match_the_definition(n, m, d, v, dtype):
    compare((n, d), (m, d), (m, v), dtype=dtype, terms=max(n, m))


@pytest.mark.parametrize(("n", "m", "d", "v"), [(131, 67, 2, 40), (2, 195, 2, 5), (64, 64, 1, 16)])
def test_sizes_around_tiles_and_panels(n, m, d, v):
    compare((n, d), (m, d), (m, v), terms=max(n, m, d))


@pytest.mark.parametrize(("x_batch", "y_batch", "values_batch"), [((2, 1), (3,), ()), ((), (2,), (1,))])
def test_leading_dimensions_broadcast_and_gradients_reduce(x_batch, y_batch, values_batch):
    compare((*x_batch, 3, 2), (*y_batch, 4, 2), (*values_batch, 4, 2), terms=6)


@pytest.mark.parametrize(
    ("batch", "n", "m", "d", "v"),
    [((2,), 0, 3, 4, 2), ((2,), 3, 0, 4, 2), ((0,), 3, 2, 4, 2), ((2,), 3, 2, 0, 2), ((2,), 3, 2, 4, 0)],
)
def test_empty_inputs_give_empty_or_zero_results(batch, n, m, d, v):
    compare((*batch, n, d), (*batch, m, d), (*batch, m, v))


@pytest.mark.parametrize("layout", ["permuted", "expanded"])
def test_memory_layout_does_not_change_a_bit(layout):
    tensors = torch.randn(2, 5, 3), torch.randn(2, 4, 3), torch.randn(2, 4, 6), torch.randn(2, 5, 6)
    move = lambda t: t[:1, :1].expand(t.shape) if layout == "expanded" else layouts(t)[layout]
    moved = [move(t) for t in tensors]
    results = []
    for *inputs, grad in (moved, [t.clone(memory_format=torch.contiguous_format) for t in moved]):
        inputs = [t.detach().requires_grad_() for t in inputs]
        out = product(*inputs)
        results.append([out, *torch.autograd.grad(out, inputs, grad)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_slices_of_a_fused_projection():
    qkv = torch.randn(2, 9, 3, 2, 4)
    q, k, v = (t.transpose(1, 2).detach().requires_grad_() for t in qkv.unbind(2))
    assert_matches(product, lambda x, y, values: laplacian(x, y, SCALE) @ values, [q, k, v], terms=9)


def test_gradient_matches_finite_differences():
    x, y = (2 * torch.randint(-3, 4, shape) + torch.rand(shape) * 0.5 for shape in ((3, 2), (2, 2)))
    inputs = x.double().requires_grad_(), (y.double() + 1).requires_grad_(), *leaves((2, 2))
    assert torch.autograd.gradcheck(product, inputs, fast_mode=True)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(("n", "m", "d", "v"), [(3, 2, 5, 7), (70, 66, 3, 18)])
def test_every_element_is_written_and_padding_is_not_read(n, m, d, v):
    compare((n, d), (m, d), (m, v), terms=max(n, m))


@pytest.mark.parametrize("which", [0, 1, 2], ids=["x", "y", "values"])
def test_nan_in_one_matrix_stays_in_that_matrix(which):
    tensors = [torch.randn(3, 5, 4), torch.randn(3, 6, 4), torch.randn(3, 6, 2)]
    clean = [tensor.clone() for tensor in tensors]
    tensors[which][1, 2, 1] = math.nan
    results = []
    for inputs in (tensors, clean):
        out = product(*(tensor.requires_grad_() for tensor in inputs))
        results.append([out, *torch.autograd.grad(out, inputs, torch.ones(3, 5, 2))])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a[::2], b[::2])
    assert results[0][0][1].isnan().any()
    assert any(grad[1].isnan().any() for grad in results[0][1:])


def test_same_inputs_give_the_same_bits():
    inputs = leaves((2, 3), (131, 3), (131, 5), dtype=torch.float32)
    results = []
    for _ in range(2):
        out = product(*inputs)
        results.append([out, *torch.autograd.grad(out, inputs, torch.ones(2, 5))])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("batch", "n", "m"), [(1, 130, 129), (2, 2, 3)])
def test_the_gradient_in_several_tiles(batch, n, m, monkeypatch):
    inputs, grad = leaves((batch, n, 3), (batch, m, 3), (batch, m, 2)), torch.ones(batch, n, 2)
    whole = gradients(lambda x, y, values: laplacian(x, y, SCALE) @ values, inputs, grad)
    monkeypatch.setattr(triton_support, "WEIGHTS_BYTES", 1)  # One panel by one panel of one matrix.
    for a, b in zip(gradients(product, inputs, grad), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(64, 3136, 49), (8192, 16, 16), (1, 1 << 18, 1 << 18), (1, 1, 1 << 22)])
def test_weights_take_bounded_memory(shape):
    """Whatever N and M are, and every pair is in one tile."""
    batch, n, m = shape
    x, y = torch.empty(batch, n, 1, device="meta"), torch.empty(batch, m, 1, device="meta")
    pairs = 0
    for b, i, j in triton_support.tiles(x, y):
        buffers = weights_like(x[b, i], y[b, j])
        assert sum(t.numel() * t.element_size() for t in buffers) <= triton_support.WEIGHTS_BYTES
        pairs += x[b].shape[0] * x[:, i].shape[1] * y[:, j].shape[1]
    assert pairs == batch * n * m
