import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

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


@pairwise(
    {
        "backend": BACKENDS,
        "batch, n, m, d": [((), 1, 1, 1), ((2,), 5, 3, 7), ((2, 3), 17, 1, 33), ((1,), 67, 49, 32), ((3,), 1, 130, 5)],
        "dtype": DTYPES,
    },
    indirect=["backend"],
)
def test_values_and_gradients_match_the_definition(backend, batch, n, m, d, dtype):
    assert_matches(
        lambda x, y: ops.laplacian_kernel(x, y, SCALE, backend=backend),
        lambda x, y: laplacian(x, y, SCALE),
        leaves((*batch, n, d), (*batch, m, d), dtype=dtype),
        terms=max(n, m),
    )


# In the reference a tile of differences is 4 MB: these need several along the batch, the rows and the columns.
@pytest.mark.parametrize(("b", "n", "m", "d"), [(5, 90, 90, 32), (1, 300, 130, 64), (2, 3, 17_000, 64)])
def test_values_and_gradients_match_the_definition_across_tiles(backend, b, n, m, d):
    assert_matches(
        lambda x, y: ops.laplacian_kernel(x, y, 40.0, backend=backend),
        lambda x, y: laplacian(x, y, 40.0),
        leaves((b, n, d), (b, m, d), dtype=torch.float32),
        terms=max(n, m),
    )


@pytest.mark.parametrize("scale", [0.5, 4, 50.0])
def test_gradient_matches_finite_differences(backend, scale):
    # Integers that differ by an odd number, then moved by less than the step to a tie.
    x, y = (2 * torch.randint(-3, 4, shape) + torch.rand(shape) * 0.5 for shape in ((2, 4, 3), (2, 5, 3)))
    inputs = x.double().requires_grad_(), (y.double() + 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: ops.laplacian_kernel(x, y, scale, backend=backend), inputs)


def test_equal_points_have_kernel_one_and_gradient_zero(backend):
    x = torch.randn(3, 1, 5, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    out = ops.laplacian_kernel(x, y, SCALE, backend=backend)
    out.sum().backward()
    assert torch.equal(out, torch.ones(3, 1, 1))
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(y.grad, torch.zeros_like(y))


def test_a_tied_feature_has_gradient_zero_and_the_others_are_right(backend):
    x = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    y = torch.tensor([[1.0, 0.0, 4.0]], requires_grad=True)
    ops.laplacian_kernel(x, y, 3.0, backend=backend).sum().backward()
    slope = torch.tensor(math.exp(-1.0) / 3.0)
    torch.testing.assert_close(x.grad, slope * torch.tensor([[0.0, -1.0, 1.0]]))
    torch.testing.assert_close(y.grad, slope * torch.tensor([[0.0, 1.0, -1.0]]))
    assert x.grad[0, 0] == 0


def test_gradient_of_a_gram_matrix_ignores_its_diagonal(backend):
    (x,) = leaves((6, 3))
    grad = torch.randn(6, 6, dtype=torch.float64)
    gram = lambda x: ops.laplacian_kernel(x, x, SCALE, backend=backend)
    assert torch.equal(gradients(gram, [x], grad)[0], gradients(gram, [x], grad + 100 * torch.eye(6))[0])


@pytest.mark.parametrize(
    ("x_batch", "y_batch"), [((2, 1), (3,)), ((), (2, 3)), ((4, 1, 1), (1, 3, 2)), ((1,), (5,)), ((2, 3), (2, 3))]
)
def test_leading_dimensions_broadcast_and_gradients_reduce(backend, x_batch, y_batch):
    assert_matches(
        lambda x, y: ops.laplacian_kernel(x, y, SCALE, backend=backend),
        lambda x, y: laplacian(x, y, SCALE),
        leaves((*x_batch, 5, 3), (*y_batch, 4, 3)),
        terms=6,
    )


@pytest.mark.parametrize("layout", ["transposed", "strided", "permuted"])
def test_memory_layout_does_not_change_the_result(backend, layout):
    x, y, grad = torch.randn(2, 5, 3), torch.randn(2, 4, 3), torch.randn(2, 5, 4)
    function = lambda x, y: ops.laplacian_kernel(x, y, SCALE, backend=backend)
    plain = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    moved = [layouts(tensor)[layout].requires_grad_() for tensor in (x, y)]
    assert not all(tensor.is_contiguous() for tensor in moved)
    assert torch.equal(function(*plain), function(*moved))
    for a, b in zip(gradients(function, plain, grad), gradients(function, moved, layouts(grad)[layout]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_expanded_inputs_and_gradient_equal_their_copies(backend):
    x, y = torch.randn(1, 5, 3).expand(4, 5, 3).requires_grad_(), torch.randn(4, 1, 3).expand(4, 6, 3).requires_grad_()
    grad = torch.randn(4, 1, 1).expand(4, 5, 6)
    function = lambda x, y: ops.laplacian_kernel(x, y, SCALE, backend=backend)
    copies = [tensor.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for tensor in (x, y)]
    for a, b in zip(gradients(function, [x, y], grad), gradients(function, copies, grad.contiguous()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("batch", "n", "m", "d"), [((2,), 0, 3, 4), ((2,), 3, 0, 4), ((0,), 3, 2, 4), ((2,), 3, 2, 0), ((), 0, 0, 0)]
)
def test_empty_inputs_give_empty_or_constant_results(backend, batch, n, m, d):
    x, y = leaves((*batch, n, d), (*batch, m, d))
    out = ops.laplacian_kernel(x, y, SCALE, backend=backend)
    out.sum().backward()
    assert torch.equal(out, laplacian(x, y, SCALE))
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(y.grad, torch.zeros_like(y))


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(("n", "m", "d"), [(37, 19, 5), (300, 130, 64)])
def test_every_element_is_written(backend, n, m, d):
    inputs = leaves((3, n, d), (3, m, d), dtype=torch.float32)
    function = lambda x, y: ops.laplacian_kernel(x, y, SCALE, backend=backend)
    assert function(*inputs).isfinite().all()
    assert all(grad.isfinite().all() for grad in gradients(function, inputs, torch.ones(3, n, m)))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_in_one_matrix_stays_in_that_matrix(backend, poison):
    x, y = torch.randn(3, 5, 4), torch.randn(3, 6, 4)
    function = lambda x, y: ops.laplacian_kernel(x, y, SCALE, backend=backend)
    clean = gradients(function, [x.clone().requires_grad_(), y.clone().requires_grad_()], torch.ones(3, 5, 6))
    poisoned = x.clone()
    poisoned[1, 2, 3] = poison
    out = function(poisoned, y)
    assert out[1].isnan().any() == math.isnan(poison)
    assert torch.equal(out[::2], function(x, y)[::2])
    grads = gradients(function, [poisoned.requires_grad_(), y.clone().requires_grad_()], torch.ones(3, 5, 6))
    for a, b in zip(grads, clean, strict=True):
        assert torch.equal(a[::2], b[::2])
    assert grads[0][1].isnan().any() == math.isnan(poison)


def test_memory_stays_far_below_a_buffer_of_all_differences(backend):
    x, y = leaves((1, 1500, 32), (1, 1500, 32), dtype=torch.float32)
    kernel = 4 * 1500 * 1500
    assert 32 * kernel > 4 << 26
    assert peak_bytes(lambda: ops.laplacian_kernel(x, y, SCALE, backend=backend).sum().backward()) < 2 * kernel + (
        1 << 26
    )


def test_same_inputs_give_the_same_bits(backend):
    inputs = leaves((2, 50, 8), (2, 40, 8), dtype=torch.float32)
    function = lambda x, y: ops.laplacian_kernel(x, y, SCALE, backend=backend)
    first, second = (gradients(function, inputs, torch.ones(2, 50, 40)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pairwise({"backend": BACKENDS, "narrow": DTYPES, "wide": DTYPES}, indirect=["backend"])
def test_result_has_the_wider_dtype_and_each_gradient_its_own(backend, narrow, wide):
    x, y = torch.randn(3, 2, dtype=narrow, requires_grad=True), torch.randn(4, 2, dtype=wide, requires_grad=True)
    out = ops.laplacian_kernel(x, y, SCALE, backend=backend)
    out.sum().backward()
    assert out.dtype == torch.promote_types(narrow, wide)
    assert (x.grad.dtype, y.grad.dtype) == (narrow, wide)
    assert_close(out, laplacian(x.detach().double(), y.detach().double(), SCALE), 1.0)


@pytest.mark.parametrize("d", [1, 4, 32])
def test_gradient_near_equal_points_keeps_its_length_where_the_gaussian_loses_it(backend, d):
    """The paper's proposition: sqrt(d) / lambda for the Laplacian kernel, linear in the distance for the Gaussian."""

    def length(kernel, distance: float) -> Tensor:
        y = torch.randn(1, d, dtype=torch.float64)
        x = (y + distance * torch.randn(1, d, dtype=torch.float64).sign()).requires_grad_()
        return torch.autograd.grad(kernel(x, y), x)[0].norm()

    for distance in (1e-6, 1e-8):
        ours = length(lambda x, y: ops.laplacian_kernel(x, y, SCALE, backend=backend), distance)
        assert ours.item() == pytest.approx(math.sqrt(d) / SCALE, rel=1e-4)
    for distance in (1e-2, 1e-3, 1e-4):
        gaussian = length(lambda x, y: ops.gaussian_kernel(x, y, SCALE), distance)
        assert gaussian.item() == pytest.approx(math.sqrt(d) * distance / SCALE**2, rel=1e-3)


@st.composite
def points(draw: st.DrawFn, sets: int) -> list[Tensor]:
    """Sets of points of one width, some of them shared, at scales from tiny to far beyond underflow."""
    d = draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread = draw(st.sampled_from([1e-3, 1.0, 30.0, 1e4]))
    round_to = draw(st.sampled_from([None, 0]))
    out = [
        torch.randn(draw(st.integers(1, 12)), d, generator=generator, dtype=torch.float64) * spread for _ in range(sets)
    ]
    return [x if round_to is None else x.round() for x in out]


scales = st.floats(1e-2, 1e2)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(points(2), scales, st.sampled_from([torch.float32, torch.float64]))
def test_kernel_is_between_0_and_1_and_symmetric_bit_for_bit(sets, scale, dtype):
    x, y = (points.to(dtype) for points in sets)
    k = ops.laplacian_kernel(x, y, scale)
    assert ((k >= 0) & (k <= 1)).all()
    assert torch.equal(k, ops.laplacian_kernel(y, x, scale).mT)
    assert_close(k, laplacian(x.double(), y.double(), scale), 1.0)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(points(3), scales)
def test_kernel_obeys_the_triangle_inequality(sets, scale):
    """|x - z| <= |x - y| + |y - z|, so k(x, z) >= k(x, y) k(y, z), but for subnormal numbers, which may be 0."""
    x, y, z = sets
    xy, yz, xz = (ops.laplacian_kernel(a, b, scale) for a, b in ((x, y), (y, z), (x, z)))
    least = xy[:, :, None] * yz[None] * (1 - 1e-9) - torch.finfo(torch.float64).tiny
    assert (xz[:, None, :] >= least).all()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(points(1), scales)
def test_gram_matrix_has_a_diagonal_of_ones_and_is_positive_semidefinite(sets, scale):
    (x,) = sets
    gram = ops.laplacian_kernel(x, x, scale)
    assert torch.equal(gram.diagonal(), torch.ones(len(x), dtype=torch.float64))
    assert torch.linalg.eigvalsh(gram).min() >= -1e-13 * len(x)
