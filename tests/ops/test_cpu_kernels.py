"""The `cpu` backend against the reference in float64: values, every gradient, every instruction set."""

import pytest
import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer.ops._cpu_extension import LEVELS
from tests.pairwise import pairwise

pytestmark = pytest.mark.skipif(ops.backends()["cpu"] is not None, reason=str(ops.backends()["cpu"]))

# (N, M, d, v): squares, long and short sides either way, one more or less than vectors, blocks and chunks, empty.
SHAPES = [
    (49, 49, 32, 32),
    (300, 49, 32, 32),
    (49, 300, 32, 32),
    (1, 1, 1, 1),
    (7, 3, 5, 2),
    (129, 65, 33, 17),
    (65, 129, 33, 17),
    (1, 200, 3, 40),
    (200, 1, 3, 40),
    (17, 16, 65, 16),
    (130, 1024, 8, 4),
    (0, 5, 3, 2),
    (5, 0, 3, 2),
    (6, 7, 0, 3),
    (6, 7, 3, 0),
]
# Relative to the largest number of the result: accumulation in float32, then one rounding to the dtype.
TOLERANCE = {torch.float32: 5e-6, torch.float64: 2e-14, torch.bfloat16: 8e-3, torch.float16: 2e-3}


def inputs(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, scale: float = 0.7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).mul(scale).to(dtype) for shape in shapes]


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert actual.shape == expected.shape
    bound = tolerance * expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=bound + 1e-12)


def compare(op: str, tensors: list[Tensor], tolerance: float, scale: float = 4.0) -> None:
    """The op and all its gradients on the cpu backend, against the reference in float64."""
    function = getattr(ops, op)
    ours = [t.detach().clone().requires_grad_() if t.is_contiguous() else t.requires_grad_() for t in tensors]
    exact = [t.detach().double().clone().requires_grad_() for t in tensors]
    out, expected = function(*ours, scale, backend="cpu"), function(*exact, scale, backend="reference")
    assert out.dtype == tensors[0].dtype
    assert_close(out, expected, tolerance)
    (grad,) = inputs(tuple(out.shape), dtype=out.dtype)
    gradients = torch.autograd.grad(out, ours, grad)
    for actual, wanted in zip(gradients, torch.autograd.grad(expected, exact, grad.double()), strict=True):
        assert_close(actual, wanted, tolerance)


# The shapes that the models have are tried in every dtype on every instruction set.
@pairwise(
    {"level": LEVELS, "shape": SHAPES, "dtype": list(TOLERANCE)},
    also=[
        {"level": level, "shape": shape, "dtype": dtype}
        for level in LEVELS
        for shape in SHAPES[:3]
        for dtype in TOLERANCE
    ],
    indirect=["level"],
)
def test_matches_the_reference(level: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    n, m, d, v = shape
    # Distances of a few scales at any width: float16 has no digits left for the kernel of larger ones.
    x, y, values = inputs((3, n, d), (3, m, d), (3, m, v), dtype=dtype, scale=min(0.7, 20 / max(d, 1)))
    compare("laplacian_kernel", [x, y], TOLERANCE[dtype])
    compare("laplacian_matmul", [x, y, values], TOLERANCE[dtype])


@pytest.mark.parametrize(("m", "d"), [(4096, 2), (3, 256), (64, 200)])
def test_sizes_near_the_limits(level: str, m: int, d: int) -> None:
    x, y, values = inputs((70, d), (m, d), (m, 3), scale=8 / d)
    compare("laplacian_kernel", [x, y], 1e-5)
    compare("laplacian_matmul", [x, y, values], 1e-5)


def test_slices_of_a_fused_projection(level: str) -> None:
    qkv = inputs((2, 100, 3, 4, 32))[0]
    q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
    landmarks = k[:, :, ::4]
    compare("laplacian_matmul", [q, landmarks, v[:, :, ::4]], 5e-6)
    compare("laplacian_matmul", [landmarks, k, v], 5e-6)
    compare("laplacian_kernel", [q, landmarks], 5e-6)


def test_strided_last_dimension_and_broadcast_rows(level: str) -> None:
    x, y = inputs((3, 20, 40), (3, 20, 9))
    compare("laplacian_kernel", [x.mT, y.mT], 5e-6)
    row = inputs((1, 20))[0].expand(40, 20)
    compare("laplacian_kernel", [row, x[0].mT], 5e-6)


@pytest.mark.parametrize("shape", [(150, 49), (49, 150), (200, 5), (150, 70)], ids=str)
def test_gradient_that_is_a_slice(level: str, shape: tuple[int, int]) -> None:
    """Its rows and matrices lie further apart than those of the kernel."""
    x, y, wide = inputs((2, shape[0], 32), (2, shape[1], 32), (2, shape[0] + 3, shape[1] + 10))
    results = []
    for grad in (wide[:, 1:-2, 4:-6], wide[:, 1:-2, 4:-6].contiguous()):
        leaves = [t.clone().requires_grad_() for t in (x, y)]
        results.append(torch.autograd.grad(ops.laplacian_kernel(*leaves, 4.0, backend="cpu"), leaves, grad))
    for sliced, dense in zip(*results, strict=True):
        assert torch.equal(sliced, dense)


def test_broadcast_batch_sums_the_gradient(level: str) -> None:
    x, y, values = inputs((2, 1, 50, 8), (3, 7, 8), (1, 3, 7, 5))
    compare("laplacian_matmul", [x, y, values], 5e-6)
    compare("laplacian_kernel", [x, y], 5e-6)


@pairwise({"level": LEVELS, "dtype": list(TOLERANCE), "width": [32, 33]}, indirect=["level"])
def test_ties_have_no_gradient(level: str, dtype: torch.dtype, width: int) -> None:
    """sign(0) = 0, for whole rows (a landmark against itself) and for single features, of 0 and -0 too."""
    x = inputs((60, width))[0].round().to(dtype)
    assert x.signbit()[x == 0].unique().numel() == 2
    compare("laplacian_kernel", [x, x.clone()], TOLERANCE[dtype])
    compare("laplacian_matmul", [x, x[:50].clone(), inputs((50, 7), dtype=dtype)[0]], TOLERANCE[dtype])


# Zeros, subnormal numbers, neighbours of the powers of 2 where another form of the sign begins, and infinity.
MAGNITUDES = torch.tensor(
    [
        *(0.0, 1e-45, 1e-40, 1e-30, 2.0**-73, 2.0**-72 * (1 - 2.0**-24)),
        *(2.0**-72, 2.0**-72 * (1 + 2.0**-23), 1e-20, 1e-7, 0.3, 0.3 + 2.0**-25, 1.0, 3.0, 2.0**30 * (1 - 2.0**-24)),
        *(2.0**30, 1e20, 3e38, torch.inf),
    ]
)


@pytest.mark.parametrize("reach", [(6, 15), (0, 15), (6, 19), (0, 19)], ids=["usual", "tiny", "huge", "all"])
@pytest.mark.parametrize("sides", ["both", "x", "y"])
def test_signs_of_all_magnitudes(level: str, reach: tuple[int, int], sides: str) -> None:
    """The gradient that arrives is chosen, and so is the stored kernel: every sign counts, however far apart."""
    generator = torch.Generator().manual_seed(0)

    def rows(count: int, first: int, end: int) -> Tensor:
        usual = torch.cat([MAGNITUDES[:1], MAGNITUDES[first:end]])
        chosen = usual[torch.randint(len(usual), (count, 33), generator=generator)]
        return chosen * (torch.randint(2, (count, 33), generator=generator) * 2 - 1)

    x, y = (rows(count, *(reach if sides in ("both", name) else (6, 15))) for count, name in ((37, "x"), (70, "y")))
    y[y.isinf()] = 1.0  # Infinite rows have no distance from each other.
    weights = torch.randn(37, 70, generator=generator)
    backward = torch.ops.laplacianformer_cpu.kernel_backward
    for long, short, given in ((x, y, weights), (y, x, weights.mT.contiguous())):
        dx, dy = backward(given, long, short, torch.ones_like(given), None, None, 4.0, LEVELS.index(level))
        signs = (long[:, None] > short).double() - (long[:, None] < short).double()
        terms = signs * given.double()[..., None] / -4.0
        assert_close(dx, terms.sum(1), 5e-7)
        assert_close(dy, -terms.sum(0), 5e-7)


def test_both_forms_of_the_sign_give_the_same_bits(level: str) -> None:
    """A tiny number among the rows, on the same side of all others as 0 is, changes no sign: only the form may."""
    x, y = inputs((150, 32), (49, 32))
    x[x == 0] = 1.0
    grad = inputs((150, 49))[0]
    results = []
    for tiny in (0.0, 1e-40):
        y[3, 5] = tiny
        leaves = [x.clone().requires_grad_(), y.clone().requires_grad_()]
        results.append(torch.autograd.grad(ops.laplacian_kernel(*leaves, 4.0, backend="cpu"), leaves, grad))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_special_numbers(level: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0], [1.0], [1e5], [float("inf")], [float("nan")]], dtype=dtype)
    out = ops.laplacian_kernel(x, torch.zeros(1, 1, dtype=dtype), 4.0, backend="cpu").squeeze()
    assert out[0] == 1
    assert out[2] == out[3] == 0
    assert out[4].isnan()
    assert out[:4].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounds_as_torch_does(level: str, dtype: torch.dtype) -> None:
    """All 65536 values of the dtype are read, and results are rounded to nearest, ties to even."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = every[every.isfinite()].view(-1, 1)
    zero = torch.zeros(1, 1, dtype=dtype)
    kernel = ops.laplacian_kernel(finite, zero, 4.0, backend="cpu")
    wide = ops.laplacian_kernel(finite.float(), zero.float(), 4.0, backend="cpu")
    assert torch.equal(kernel, wide.to(dtype))
    scaled = ops.laplacian_matmul(zero, zero, finite.mT, 4.0, backend="cpu")  # The kernel is 1 here.
    assert torch.equal(scaled, finite.mT)


@pytest.mark.parametrize("shape", [(200, 49, 32, 32), (49, 200, 32, 32), (130, 70, 9, 5)], ids=str)
def test_writes_every_element(level: str, shape: tuple[int, int, int, int]) -> None:
    """In this mode torch fills new tensors with NaN: an element that is never written shows."""
    n, m, d, v = shape
    x, y, values = inputs((2, n, d), (2, m, d), (2, m, v))
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        compare("laplacian_kernel", [x, y], 5e-6)
        compare("laplacian_matmul", [x, y, values], 5e-6)
    finally:
        torch.use_deterministic_algorithms(False)


@pairwise(
    {
        "level": LEVELS,
        "width": [32, 64, 256],
        "magnitude, offset": [(0.1, 0.0), (1.0, 0.0), (10.0, 0.0), (0.1, 100.0), (1.0, 100.0), (10.0, 100.0)],
    },
    indirect=["level"],
)
def test_accuracy_budget(level: str, width: int, magnitude: float, offset: float) -> None:
    """The error against float64 is at most 4 times that of torch.cdist in float32."""
    x, y = (t + offset for t in inputs((500, width), (49, width), scale=magnitude))
    exact = torch.cdist(x.double(), y.double(), p=1).div(-4).exp()
    theirs = (torch.cdist(x, y, p=1).div(-4).exp() - exact).abs()
    ours = (ops.laplacian_kernel(x, y, 4.0, backend="cpu") - exact).abs()
    tiny = torch.finfo(torch.float32).tiny  # Below it, results are 0.
    assert ours.max() <= 4 * theirs.max() + tiny
    assert ours.mean() <= 4 * theirs.mean() + tiny


@pytest.mark.parametrize("magnitude", [0.5, 2.0, 20.0])
def test_close_pairs_far_from_the_origin(level: str, magnitude: float) -> None:
    """Within and beyond the bound of the form that sums maxima, a kernel near 1 stays accurate."""
    (centre, noise) = inputs((60, 32), (60, 32), scale=1.0)
    x, y = centre * magnitude, centre * magnitude + noise * 1e-3
    exact = torch.cdist(x.double(), y.double(), p=1).div(-4).exp()
    assert (ops.laplacian_kernel(x, y, 4.0, backend="cpu") - exact).abs().max() < 3e-6
    assert torch.equal(ops.laplacian_kernel(x, x, 4.0, backend="cpu").diagonal(), torch.ones(60))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_a_bad_row_affects_no_other(level: str, bad: float) -> None:
    x, y = inputs((300, 32), (70, 32))
    clean = ops.laplacian_kernel(x, y, 4.0, backend="cpu")
    x[130, 3], y[66, 5] = bad, bad
    out = ops.laplacian_kernel(x, y, 4.0, backend="cpu")
    rows, columns = torch.arange(300) != 130, torch.arange(70) != 66
    assert_close(out[rows][:, columns], clean[rows][:, columns].double(), 5e-6)
    affected = torch.cat([out[130, columns], out[rows, 66]])
    assert affected.isnan().all() if bad != bad else (affected == 0).all()
