import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laplacianformer import ops
from laplacianformer.ops._precision import full_products
from tests.ops.helpers import BACKENDS, DTYPES, assert_close, gradients, kernel_matrix, laplacian, layouts, regularised
from tests.pairwise import pairwise

EPS = 2**-6
STARTS = ("transpose", "identity")
POSITIVE = (*STARTS, "authors")  # for symmetric matrices without negative entries


def ring(m: int) -> Tensor:
    """Kernel of points on a ring: constant row sums, exact in binary, so that all rows tie for the norm."""
    distance = torch.arange(m, dtype=torch.float64)
    return 0.5 ** torch.minimum((distance[:, None] - distance).abs(), m - (distance[:, None] - distance).abs())


def matrices() -> dict[str, tuple[Tensor, tuple[str, ...]]]:
    """Name: a matrix and the starts from which it must converge (identity: symmetric positive definite only)."""
    torch.manual_seed(1)
    low_rank = torch.randn(8, 2, dtype=torch.float64)
    q, k = torch.randn(2, 9, 4, dtype=torch.float64)
    return {
        "kernel": (kernel_matrix(12, 4, 3), POSITIVE),
        "not symmetric": (torch.randn(3, 9, 9, dtype=torch.float64), ("transpose",)),
        "cross kernel": (laplacian(q, k, 4.0), ("transpose",)),
        "singular plus eps": (low_rank @ low_rank.mT, STARTS),
        "singular, not symmetric, plus eps": (low_rank @ torch.rand(2, 8, dtype=torch.float64), ("transpose",)),
        "equal landmarks": (torch.ones(7, 7, dtype=torch.float64), POSITIVE),
        "constant row sums": (ring(10), POSITIVE),
        "m = 1": (torch.ones(1, 1, dtype=torch.float64), POSITIVE),
        "m = 1, negative": (torch.full((1, 1), -0.3, dtype=torch.float64), ("transpose",)),
    }


CASES = {f"{name}, {start}": (w, start) for name, (w, starts) in matrices().items() for start in starts}
every_case = pytest.mark.parametrize(("w", "start"), CASES.values(), ids=CASES)


def first(a: Tensor, start: str) -> Tensor:
    rows = torch.linalg.matrix_norm(a, math.inf)[..., None, None]
    if start == "transpose":
        return a.mT / (torch.linalg.matrix_norm(a, 1)[..., None, None] * rows)
    if start == "authors":
        return 1.8 / (rows - EPS) ** 2 * a
    return 1.5 / rows * torch.eye(a.shape[-1], dtype=a.dtype)


def residual(a: Tensor, x: Tensor) -> Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype) - a @ x


def loop(x: Tensor, a: Tensor, iterations: int) -> Tensor:
    for _ in range(iterations):
        x = x @ (2 * torch.eye(a.shape[-1], dtype=a.dtype) - a @ x)
    return x


def steps(w: Tensor, iterations: int, start: str) -> Tensor:
    a = regularised(w, EPS)
    return loop(first(a, start), a, iterations)


@every_case
def test_converges_to_the_inverse(backend, w, start):
    x = ops.newton_schulz(w, 50, EPS, start=start, backend=backend)
    assert_close(x, torch.linalg.inv(regularised(w, EPS)), budget=1e-9)


@every_case
def test_residual_never_grows(w, start):
    """Frobenius norm: from both starts I - A X_0 is symmetric with eigenvalues in (-1, 1), and each step squares it."""
    residuals = ops.newton_schulz_residuals(w, 50, EPS, start=start)
    assert residuals.shape == (51, *w.shape[:-2])
    assert (residuals[0] < 1).all()
    assert (residuals[1:] <= residuals[:-1] + 1e-11).all()
    assert (residuals[-1] < 1e-9).all()


@every_case
def test_residuals_are_those_of_the_iterates(backend, w, start):
    a = regularised(w, EPS)
    iterates = [first(a, start), *(ops.newton_schulz(w, k, EPS, start=start, backend=backend) for k in (1, 2, 3, 4))]
    expected = torch.stack([residual(a, x).square().mean((-2, -1)).mul(a.shape[-1]).sqrt() for x in iterates])
    torch.testing.assert_close(ops.newton_schulz_residuals(w, 4, EPS, start=start), expected, rtol=1e-9, atol=1e-11)


@pairwise({"backend": BACKENDS, "w, start": CASES, "iterations": [1, 2, 6]}, indirect=["backend"])
def test_takes_exactly_the_number_of_steps_asked_for(backend, w, start, iterations):
    assert_close(
        ops.newton_schulz(w, iterations, EPS, start=start, backend=backend), steps(w, iterations, start), budget=1e-12
    )


def test_identity_start_needs_fewer_steps_on_a_kernel_matrix():
    w = kernel_matrix(49, 8)
    identity, transpose = (ops.newton_schulz_residuals(w, 30, EPS, start=start) for start in reversed(STARTS))
    assert (identity > 1e-6).sum() < 0.7 * (transpose > 1e-6).sum()


def test_the_start_of_the_paper_diverges_on_a_kernel_matrix():
    """X_0 = (2 / norm2) W' needs norm2 < 1, which ones on the diagonal rule out."""
    a = regularised(kernel_matrix(12), EPS)
    x = 2 / torch.linalg.matrix_norm(a, 2) * a.mT
    norms = torch.stack([torch.linalg.matrix_norm(residual(a, loop(x, a, k)), 2) for k in range(5)])
    assert norms[0] > 1
    assert (norms[1:] > norms[:-1]).all()
    assert norms[-1] > 1e6
    assert ops.newton_schulz_residuals(a, 30, 0.0)[-1] < 1e-9


def test_the_start_of_the_authors_takes_more_steps_and_needs_a_symmetric_matrix():
    """As there is no transpose in it, it diverges on the kernel between two sets of points."""
    w, (cross, _) = kernel_matrix(49, 8), matrices()["cross kernel"]
    authors, identity = (ops.newton_schulz_residuals(w, 30, EPS, start=start) for start in ("authors", "identity"))
    assert (authors > 1e-6).sum() > 1.4 * (identity > 1e-6).sum()
    assert not ops.newton_schulz_residuals(cross, 30, EPS, start="authors")[-1] < 1
    assert ops.newton_schulz_residuals(cross, 30, EPS, start="transpose")[-1] < 1e-6


@pytest.mark.parametrize("name", ["equal landmarks", "constant row sums", "m = 1"])
def test_identity_start_of_2_over_the_norm_stalls_where_rows_tie_and_ours_converges(name):
    """With constant row sums norminf is an eigenvalue: A X_0 = 2 along it, the residual is -1, and X collapses to 0."""
    w, _ = matrices()[name]
    a = regularised(w, EPS)
    literal = loop(2 / (torch.linalg.matrix_norm(w, math.inf) + EPS) * torch.eye(len(w), dtype=w.dtype), a, 20)
    assert torch.linalg.matrix_norm(residual(a, literal), 2) > 0.99
    assert (a @ literal @ torch.ones(len(w), dtype=w.dtype)).abs().max() < 1e-6
    assert ops.newton_schulz_residuals(w, 20, EPS, start="identity")[-1] < 1e-9


@pairwise({"backend": BACKENDS, "w, start": CASES, "iterations": [1, 2, 6]}, indirect=["backend"])
def test_exact_gradient_is_that_of_the_steps_that_ran(backend, w, start, iterations):
    """Also where rows or columns tie for a norm (equal landmarks, constant row sums)."""
    grad = torch.randn_like(w)
    w = w.clone().requires_grad_()
    (ours,) = gradients(lambda w: ops.newton_schulz(w, iterations, EPS, start=start, backend=backend), [w], grad)
    (theirs,) = gradients(lambda w: steps(w, iterations, start), [w], grad)
    assert_close(ours, theirs, budget=1e-11)


@pytest.mark.parametrize("iterations", [1, 5])
@pytest.mark.parametrize("start", STARTS)
def test_exact_gradient_matches_finite_differences(backend, start, iterations):
    w = (torch.randn(2, 4, 4, dtype=torch.float64) * 0.2 + torch.eye(4)).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: ops.newton_schulz(w, iterations, EPS, start=start, backend=backend), w)


@pytest.mark.parametrize("start", STARTS)
def test_implicit_gradient_equals_exact_at_convergence_and_not_before(backend, start):
    w = kernel_matrix(10, 4, 2)
    if start == "transpose":  # not symmetric
        w = w + 0.1 * torch.rand_like(w)
    w.requires_grad_()
    grad = torch.randn_like(w)

    def difference(iterations: int) -> float:
        def gradient_of(kind: str) -> Tensor:
            options = {"start": start, "gradient": kind, "backend": backend}
            return gradients(lambda w: ops.newton_schulz(w, iterations, EPS, **options), [w], grad)[0]

        exact, implicit = gradient_of("exact"), gradient_of("implicit")
        return ((exact - implicit).norm() / exact.norm()).item()

    assert difference(40) < 1e-9
    assert difference(3) > 0.1


@pytest.mark.parametrize("gradient", ["exact", "implicit"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_budget(backend, dtype, gradient):
    w = kernel_matrix(10, 4, 2).to(dtype).requires_grad_()
    exact = w.detach().double().requires_grad_()
    # Conditioned by eps: the error of the inverse is the unit of the arithmetic times the condition number.
    function = lambda w: ops.newton_schulz(w, 30, 0.5, gradient=gradient, backend=backend)
    oracle = lambda w: torch.linalg.inv(regularised(w, 0.5))
    grad = torch.randn(2, 10, 10).to(dtype)
    assert function(w).dtype == dtype
    assert_close(function(w).detach(), oracle(exact).detach(), 4.0)
    (theirs,) = gradients(oracle, [exact], grad)
    assert_close(gradients(function, [w], grad)[0], theirs, 4 * theirs.abs().max().item())


@pytest.mark.parametrize("gradient", ["exact", "implicit"])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_in_one_matrix_stays_in_that_matrix(backend, start, gradient, poison):
    clean, grad = kernel_matrix(5, 4, 3), torch.randn(3, 5, 5, dtype=torch.float64)
    poisoned = clean.clone()
    poisoned[1, 2, 3] = poison
    function = lambda w: ops.newton_schulz(w, 6, EPS, start=start, gradient=gradient, backend=backend)
    assert function(poisoned)[1].isnan().any()
    assert torch.equal(function(poisoned)[::2], function(clean)[::2])
    ours, theirs = (gradients(function, [w.requires_grad_()], grad)[0] for w in (poisoned, clean))
    assert ours[1].isnan().any()
    assert torch.equal(ours[::2], theirs[::2])


@pytest.mark.parametrize("start", STARTS)
def test_each_matrix_has_its_own_start(backend, start):
    """A start from the norm of the batch, as in some implementations of Nystrom attention, would differ."""
    w = kernel_matrix(6, 4, 3) * torch.tensor([1e-3, 1.0, 1e3], dtype=torch.float64)[:, None, None]
    together = ops.newton_schulz(w, 4, EPS, start=start, backend=backend)
    alone = torch.stack([ops.newton_schulz(one, 4, EPS, start=start, backend=backend) for one in w])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("layout", ["transposed", "strided", "permuted", "expanded"])
def test_memory_layout_does_not_change_the_result(backend, start, layout):
    w, grad = torch.rand(2, 5, 5) + 3 * torch.eye(5), torch.randn(2, 5, 5)
    moved = w[:1].expand(2, 5, 5) if layout == "expanded" else layouts(w)[layout]
    function = lambda w: ops.newton_schulz(w, 6, EPS, start=start, backend=backend)
    pair = [moved.detach().requires_grad_(), moved.clone(memory_format=torch.contiguous_format).requires_grad_()]
    torch.testing.assert_close(*(function(w) for w in pair), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*(gradients(function, [w], grad)[0] for w in pair), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 5, 5), (2, 0, 3, 3)])
def test_empty_batch(backend, shape):
    w = torch.zeros(shape, requires_grad=True)
    for start in STARTS:
        out = ops.newton_schulz(w, 3, start=start, backend=backend)
        out.sum().backward()
        assert out.shape == w.grad.shape == shape


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("start", STARTS)
def test_every_element_is_written(backend, start):
    w = kernel_matrix(9, 4, 2).float().requires_grad_()
    function = lambda w: ops.newton_schulz(w, start=start, backend=backend)
    assert function(w).isfinite().all()
    assert gradients(function, [w], torch.ones(2, 9, 9))[0].isfinite().all()


def test_second_derivative_of_the_implicit_gradient_is_that_of_the_inverse(backend):
    w = kernel_matrix(4).requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda w: ops.newton_schulz(w, 30, 0.1, gradient="implicit", backend=backend), w
    )


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(1, 10), st.sampled_from(STARTS), st.sampled_from([1e-3, 1.0, 1e3]), st.integers(0, 2**31))
def test_converges_at_every_size_and_scale_when_well_conditioned(m, start, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.linalg.qr(torch.randn(2, m, m, generator=generator, dtype=torch.float64))[0]
    values = 0.1 + 0.9 * torch.rand(m, generator=generator, dtype=torch.float64)
    w = spread * (u * values) @ (u if start == "identity" else v).mT
    product = w @ ops.newton_schulz(w, 25, 0.0, start=start)
    assert_close(product, torch.eye(m, dtype=torch.float64), budget=1e-12)


def test_full_precision_products_hold_inside_the_block_only():
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        with full_products(torch.device("cpu")):
            assert matmul.fp32_precision == "tf32"
        with full_products(torch.device("cuda")):
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
