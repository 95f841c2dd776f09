"""gelu against the complementary error function in float64, on every backend and instruction set."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer import ops
from tests.ops.helpers import BACKENDS, DTYPES, assert_close, layouts
from tests.pairwise import pairwise

SHAPES = [(), (1,), (7,), (0,), (2, 0, 3), (3, 5, 33), (2, 64), (40_000,)]
SMALLEST = 2.0**-126  # normal number of float32


def exact(x: Tensor) -> Tensor:
    """The definition. Not by 1 + erf, which has no digits left for x far below 0."""
    return x * torch.special.erfc(-x / math.sqrt(2)) / 2


def every_magnitude() -> Tensor:
    """All exponents of float32 with both signs, and all numbers between which GELU changes."""
    sizes = torch.exp2(torch.arange(-126, 128, 0.037, dtype=torch.float64)).float()
    return torch.cat([sizes, -sizes, torch.linspace(-14, 8, 100_001)])


def test_values_are_right_to_a_few_roundings_at_every_magnitude(level: str) -> None:
    x = every_magnitude()
    out, expected = ops.gelu(x, backend="cpu").double(), exact(x.double())
    assert ((out - expected).abs() <= 5 * 2.0**-24 * expected.abs() + SMALLEST).all()


def test_gradients_are_right_to_a_few_roundings_at_every_magnitude(level: str) -> None:
    x = every_magnitude().requires_grad_()
    (found,) = torch.autograd.grad(ops.gelu(x, backend="cpu").sum(), x)
    wide = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(exact(wide).sum(), wide)
    error = (found.double() - expected).abs()
    assert (error <= 4 * 2.0**-24 * expected.abs().clamp(min=0.5)).all()
    below = (x < -1) & (expected.abs() > 8 * SMALLEST)  # of the zero of the slope, where digits cancel
    assert (error <= 10 * 2.0**-24 * expected.abs())[below].all()


def test_bfloat16_is_the_exact_value_rounded(level: str) -> None:
    """For every number of bfloat16, but for a twentieth of a rounding; values and gradients."""
    x = torch.arange(-(2**15), 2**15).short().view(torch.bfloat16)
    x = x[x.isfinite()].clone().requires_grad_()
    wide = x.detach().double().requires_grad_()
    out, expected = ops.gelu(x, backend="cpu"), exact(wide)
    (slope,), (exact_slope,) = (torch.autograd.grad(y.sum(), x) for y, x in ((out, x), (expected, wide)))
    rounding = torch.finfo(torch.bfloat16).eps / 2
    assert ((out - expected).abs() <= rounding * expected.abs() + SMALLEST).all()
    scale = exact_slope.abs().where(x < -1, exact_slope.abs().clamp(min=0.5))
    # 8 more: where results may be 0 because exp(-x^2 / 2) is
    assert ((slope - exact_slope).abs() <= 1.05 * rounding * scale + 8 * SMALLEST).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_is_beside_a_number_does_not_change_its_bits(dtype: torch.dtype, level: str) -> None:
    """Numbers below -5 are computed in another way than the others."""
    x = torch.linspace(-8, 8, 1003).to(dtype)
    mixed = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    results = []
    for given in (x, x[mixed]):
        given = given.clone().requires_grad_()
        out = ops.gelu(given, backend="cpu")
        results.append([out.detach(), *torch.autograd.grad(out, given, torch.ones_like(given))])
    for straight, shuffled in zip(*results, strict=True):
        assert torch.equal(straight[mixed], shuffled)
    alone = torch.stack([ops.gelu(number, backend="cpu") for number in x[::17]])
    assert torch.equal(alone, results[0][0][::17])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_special_numbers(dtype: torch.dtype, level: str) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, largest, -largest, 0.0, -0.0]).to(dtype)
    expected = F.gelu(x.double()).to(dtype)
    torch.testing.assert_close(ops.gelu(x, backend="cpu"), expected, rtol=0, atol=0, equal_nan=True)
    assert ops.gelu(x, backend="cpu")[-1].signbit()
    slopes = torch.func.vmap(torch.func.grad(F.gelu))(x[[0, 3, 4, 5, 6]].double()).to(dtype)  # it has NaN for infinity
    given = x[[0, 3, 4, 5, 6]].requires_grad_()
    found = torch.autograd.grad(ops.gelu(given, backend="cpu").sum(), given)[0]
    torch.testing.assert_close(found, slopes, rtol=0, atol=0, equal_nan=True)


@pairwise({"backend": BACKENDS, "shape": SHAPES, "dtype": DTYPES}, indirect=["backend"])
@pytest.mark.usefixtures("poisoned_memory")
def test_values_and_gradients_match_float64(shape, dtype, backend):
    x = (3 * torch.randn(shape, dtype=torch.float64)).to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    out, expected = ops.gelu(x, backend=backend), exact(wide)
    assert out.dtype == dtype
    assert_close(out.detach(), expected.detach())
    grad = torch.randn(shape, dtype=torch.float64).to(dtype)
    assert_close(torch.autograd.grad(out, x, grad)[0], torch.autograd.grad(expected, wide, grad.double())[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_layout_changes_neither_bits_nor_order(dtype):
    x = torch.randn(2, 3, 6, 8).to(dtype)
    plain = ops.gelu(x)
    for layout, given in layouts(x).items():
        given = given.requires_grad_()
        out = ops.gelu(given)
        assert torch.equal(out, plain), layout
        assert out.stride() == F.gelu(given).stride(), layout
        one = torch.autograd.grad(out.sum(), given)[0]  # an expanded gradient
        other = torch.autograd.grad(ops.gelu(given), given, torch.ones_like(x))[0]
        assert torch.equal(one, other), layout


def test_same_bits_for_every_number_of_threads() -> None:
    x, threads = 3 * torch.randn(100_003), torch.get_num_threads()
    expected = ops.gelu(x)
    try:
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            assert torch.equal(ops.gelu(x), expected)
    finally:
        torch.set_num_threads(threads)


def test_first_and_second_derivatives_match_finite_differences(backend):
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ops.gelu(x, backend=backend), x)
    assert torch.autograd.gradgradcheck(lambda x: ops.gelu(x, backend=backend), x)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # by torch's own jvp
def test_other_derivatives_are_those_of_torch() -> None:
    x, direction = torch.randn(5, 4), torch.randn(5, 4)
    for transformed in (
        lambda f: torch.func.jvp(f, (x,), (direction,))[1],
        lambda f: torch.func.grad(lambda x: torch.func.grad(lambda y: f(y).sum())(x).sum())(x),
        lambda f: torch.func.vmap(f)(x),
    ):
        assert torch.equal(transformed(ops.gelu), transformed(F.gelu))
    given = x.requires_grad_()
    slope = torch.autograd.grad(ops.gelu(given).sum(), given, create_graph=True)[0]
    expected = torch.autograd.grad(F.gelu(given).sum(), given, create_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), x)[0], torch.autograd.grad(expected.sum(), x)[0])


def test_compilers_see_the_function_of_torch() -> None:
    seen = []

    def record(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    x = torch.randn(5, 4)
    torch.testing.assert_close(torch.compile(ops.gelu, backend=record, fullgraph=True)(x), ops.gelu(x))
    assert any("gelu" in name for name in seen)
    assert not any("laplacianformer" in name for name in seen)


def test_what_is_no_floating_point_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"gelu: x must be one of float32, .*, got torch.int64"):
        ops.gelu(torch.ones(3, dtype=torch.int64))
