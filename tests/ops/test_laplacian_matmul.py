import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacianformer import ops
from tests.ops.helpers import (
    BACKENDS,
    DTYPES,
    assert_close,
    assert_matches,
    gradients,
    laplacian,
    layouts,
    leaves,
    peak_bytes,
)
from tests.pairwise import pairwise

SCALE = 4.0


def oracle(scale):
    return lambda x, y, values: laplacian(x, y, scale) @ values


def product(backend, scale=SCALE):
    return lambda x, y, values: ops.laplacian_matmul(x, y, values, scale, backend=backend)


@pairwise(
    {
        "backend": BACKENDS,
        "batch, n, m, d, v": [
            ((), 1, 1, 1, 1),
            ((2,), 5, 3, 7, 2),
            ((2, 3), 17, 1, 33, 5),
            ((1,), 67, 49, 32, 32),
            ((3,), 1, 130, 5, 9),
        ],
        "dtype": DTYPES,
    },
    indirect=["backend"],
)
def test_values_and_gradients_match_the_definition(backend, batch, n, m, d, v, dtype):
    inputs = leaves((*batch, n, d), (*batch, m, d), (*batch, m, v), dtype=dtype)
    assert_matches(product(backend), oracle(SCALE), inputs, terms=max(n, m))


# In the reference a tile is 4 MB of differences (backward) or of kernel values (forward): these need several
# along the batch, the rows and the columns.
@pytest.mark.parametrize(
    ("b", "n", "m", "d"),
    [
        (5, 90, 90, 32),
        (1, 300, 130, 64),
        (2, 3, 17_000, 64),
        (3, 700, 700, 2),
        (1, 1100, 1000, 2),
        (1, 2, 1_100_000, 1),
    ],
)
def test_values_and_gradients_match_the_definition_across_tiles(backend, b, n, m, d):
    inputs = leaves((b, n, d), (b, m, d), (b, m, 3), dtype=torch.float32)
    assert_matches(product(backend, 40.0), oracle(40.0), inputs, terms=max(n, m))


def test_gradient_matches_finite_differences(backend):
    # Integers that differ by an odd number, then moved by less than the step to a tie.
    x, y = (2 * torch.randint(-3, 4, shape) + torch.rand(shape) * 0.5 for shape in ((2, 4, 3), (2, 5, 3)))
    inputs = x.double().requires_grad_(), (y.double() + 1).requires_grad_(), *leaves((2, 5, 2))
    assert torch.autograd.gradcheck(product(backend), inputs)


def test_equal_points_contribute_no_gradient_to_their_positions(backend):
    x, values = leaves((3, 1, 5), (3, 1, 2))
    y = x.detach().clone().requires_grad_()
    out = product(backend)(x, y, values)
    dx, dy, dvalues = torch.autograd.grad(out, (x, y, values), torch.ones_like(out))
    assert torch.equal(out, values)
    assert torch.equal(dx, torch.zeros_like(x))
    assert torch.equal(dy, torch.zeros_like(y))
    assert torch.equal(dvalues, torch.ones_like(values))


def test_a_tied_feature_has_gradient_zero(backend):
    x, values = leaves((6, 3), (4, 2))
    y = torch.randn(4, 3, dtype=torch.float64)
    with torch.no_grad():
        x[:, 1] = y[:, 1] = 0.5
    dx, dy = gradients(lambda x, y: product(backend)(x, y, values), [x, y.requires_grad_()], torch.ones(6, 2))
    for grad in (dx, dy):
        assert (grad[:, 1] == 0).all()
        assert (grad[:, ::2] != 0).all()


@pytest.mark.parametrize(
    ("x_batch", "y_batch", "values_batch"),
    [((2, 1), (3,), ()), ((), (2, 3), (3,)), ((), (), (4,)), ((4, 1, 1), (1, 3, 1), (2,)), ((1,), (5,), (5,))],
)
def test_leading_dimensions_broadcast_and_gradients_reduce(backend, x_batch, y_batch, values_batch):
    inputs = leaves((*x_batch, 5, 3), (*y_batch, 4, 3), (*values_batch, 4, 2))
    assert_matches(product(backend), oracle(SCALE), inputs, terms=5)


@pytest.mark.parametrize("layout", ["transposed", "strided", "permuted"])
def test_memory_layout_does_not_change_the_result(backend, layout):
    tensors = torch.randn(2, 5, 3), torch.randn(2, 4, 3), torch.randn(2, 4, 6)
    grad = torch.randn(2, 5, 6)
    plain = [tensor.clone().requires_grad_() for tensor in tensors]
    moved = [layouts(tensor)[layout].requires_grad_() for tensor in tensors]
    # A matrix product may add in another order for another layout.
    torch.testing.assert_close(product(backend)(*moved), product(backend)(*plain), rtol=1e-6, atol=1e-6)
    ours, theirs = gradients(product(backend), moved, layouts(grad)[layout]), gradients(product(backend), plain, grad)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_expanded_inputs_and_gradient_equal_their_copies(backend):
    x, y = torch.randn(1, 5, 3).expand(4, 5, 3).requires_grad_(), torch.randn(4, 1, 3).expand(4, 6, 3).requires_grad_()
    values = torch.randn(6, 1).expand(4, 6, 2).requires_grad_()
    grad = torch.ones(()).expand(4, 5, 2)
    copies = [t.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for t in (x, y, values)]
    ours, theirs = gradients(product(backend), [x, y, values], grad), gradients(product(backend), copies, grad)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("batch", "n", "m", "d", "v"),
    [((2,), 0, 3, 4, 2), ((2,), 3, 0, 4, 2), ((0,), 3, 2, 4, 2), ((2,), 3, 2, 0, 2), ((2,), 3, 2, 4, 0)],
)
def test_empty_inputs_give_empty_or_zero_results(backend, batch, n, m, d, v):
    assert_matches(product(backend), oracle(SCALE), leaves((*batch, n, d), (*batch, m, d), (*batch, m, v)))


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(("n", "m", "d"), [(37, 19, 5), (300, 130, 64)])
def test_every_element_is_written(backend, n, m, d):
    inputs = leaves((3, n, d), (3, m, d), (3, m, 7), dtype=torch.float32)
    assert product(backend)(*inputs).isfinite().all()
    assert all(grad.isfinite().all() for grad in gradients(product(backend), inputs, torch.ones(3, n, 7)))


@pytest.mark.parametrize("which", [0, 1, 2], ids=["x", "y", "values"])
def test_nan_in_one_matrix_stays_in_that_matrix(backend, which):
    tensors = [torch.randn(3, 5, 4), torch.randn(3, 6, 4), torch.randn(3, 6, 2)]
    clean = [tensor.clone().requires_grad_() for tensor in tensors]
    tensors[which][1, 2, 1] = math.nan
    poisoned = [tensor.requires_grad_() for tensor in tensors]
    out = product(backend)(*poisoned)
    assert out[1].isnan().any()
    assert torch.equal(out[::2], product(backend)(*clean)[::2])
    pairs = [gradients(product(backend), inputs, torch.ones(3, 5, 2)) for inputs in (poisoned, clean)]
    for a, b in zip(*pairs, strict=True):
        assert torch.equal(a[::2], b[::2])
    assert any(grad[1].isnan().any() for grad in pairs[0])


def test_memory_stays_below_64_mb_and_the_kernel_matrix_is_never_stored(backend):
    x, y, values = leaves((1, 4200, 8), (1, 4200, 8), (1, 4200, 4), dtype=torch.float32)
    assert 4 * 4200 * 4200 > 1 << 26
    assert peak_bytes(lambda: product(backend)(x, y, values).sum().backward()) < 1 << 26


def test_same_inputs_give_the_same_bits(backend):
    inputs = leaves((2, 50, 8), (2, 40, 8), (2, 40, 5), dtype=torch.float32)
    first, second = (gradients(product(backend), inputs, torch.ones(2, 50, 5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("narrow", DTYPES, ids=str)
def test_result_has_the_widest_dtype_and_each_gradient_its_own(backend, narrow):
    x, y = leaves((3, 2), (4, 2), dtype=narrow)
    (values,) = leaves((4, 5), dtype=torch.float32)
    out = product(backend)(x, y, values)
    out.sum().backward()
    assert out.dtype == torch.promote_types(narrow, torch.float32)
    assert [tensor.grad.dtype for tensor in (x, y, values)] == [narrow, narrow, torch.float32]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(st.integers(1, 3), max_size=2),
    *[st.integers(1, 20)] * 4,
    st.floats(1e-1, 1e2),
    st.sampled_from([1e-3, 1.0, 30.0]),
    st.integers(0, 2**31),
)
def test_equals_the_kernel_matrix_times_values(batch, n, m, d, v, scale, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    x, y, values = (
        torch.randn(*batch, *shape, generator=generator, dtype=torch.float64) for shape in ((n, d), (m, d), (m, v))
    )
    x, y = (spread * x).round(decimals=2), (spread * y).round(decimals=2)
    expected = ops.laplacian_kernel(x, y, scale) @ values
    assert_close(ops.laplacian_matmul(x, y, values, scale), expected, magnitude=values.abs().sum(-2).max().item())
    # Rows of a kernel of ones add up: each result is a mean of values, scaled by M.
    assert (ops.laplacian_matmul(x, y, torch.ones_like(values), scale) <= m * (1 + 1e-12)).all()
