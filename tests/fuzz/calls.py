"""Generated calls of the ops and of the layer, on every backend of this machine's CPU, against the definitions in
float64."""

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplacianformer import LaplacianAttention, ops
from laplacianformer.ops import _cpu_extension as cpu_extension
from tests.fuzz import nasty
from tests.fuzz.files import Case, Samples, expecting
from tests.fuzz.outcome import SilentlyWrong
from tests.ops.helpers import BACKENDS, BUDGET, DTYPES, laplacian, layouts

_LARGE = [number for number in nasty.NUMBERS if abs(number) > 1000]  # as many landmarks would not fit into memory
_LENGTHS = (0, 1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 49, 64, 65, 129)


def op_call(rng: random.Random, samples: Samples) -> Case:
    """One op with inputs that are right, or with one argument that is not."""
    return rng.choice(_KINDS)(rng)


def kernel(rng: random.Random) -> Case:
    """Any magnitudes and scales, equal rows, infinities and NaN."""
    x, y = _points(rng, special=True)
    scale = 10 ** rng.uniform(*rng.choice([(-2, 2), (-2, 2), (-44, 37)]))
    options = _options(rng)

    def run() -> None:
        with _level(options):
            out = ops.laplacian_kernel(_laid_out(rng, x), _laid_out(rng, y), scale, backend=options["backend"])
        exact = laplacian(x.double(), y.double(), scale)
        _compare("laplacian_kernel", out, exact, _kernel_error(x, exact))

    return run


def product(rng: random.Random) -> Case:
    """Values and all gradients, with distances of up to some scales."""
    x, y = _points(rng, special=False)
    values = _random(rng, (*x.shape[:-2], y.shape[-2], rng.choice(_LENGTHS)), x.dtype)
    scale = max(1.0, x.shape[-1] * max((t.abs().max().item() for t in (x, y) if t.numel()), default=1.0) / 4)
    options = _options(rng)

    def run() -> None:
        given = [t.clone().requires_grad_() for t in (x, y, values)]
        exact = [t.double().requires_grad_() for t in (x, y, values)]
        with _level(options):
            out = ops.laplacian_matmul(*given, scale, backend=options["backend"])
            grad = torch.ones_like(out)
            found = torch.autograd.grad(out, given, grad)
        expected = laplacian(exact[0], exact[1], scale) @ exact[2]
        wanted = torch.autograd.grad(expected, exact, grad.double())
        terms = max(1, *x.shape[-2:], *y.shape[-2:])
        for name, one, other in zip(("out", "x", "y", "values"), (out, *found), (expected, *wanted), strict=True):
            largest = other.abs().max().item() if other.numel() else 0.0
            # Terms of any sign cancel, their rounding errors need not.
            bound = 4 * terms * BUDGET[x.dtype] * max(largest, values.abs().max().item() if values.numel() else 0.0)
            _compare(f"laplacian_matmul, {name}", one.detach(), other.detach(), torch.full_like(other, bound))

    return run


def inverse(rng: random.Random) -> Case:
    m, dtype = rng.choice((1, 2, 3, 7, 16, 49, 64, 100, 130)), rng.choice(DTYPES[2:])
    points = _random(rng, (rng.choice((1, 2)), m, 8), torch.float64)
    w = laplacian(points, points, 4.0).to(dtype)
    iterations, start = rng.randrange(1, 15), rng.choice(["identity", "transpose"])
    options = _options(rng)

    def run() -> None:
        with _level(options):
            out = ops.newton_schulz(_laid_out(rng, w), iterations, 0.1, start=start, backend=options["backend"])
        exact = ops.newton_schulz(w.double(), iterations, 0.1, start=start, backend="reference")
        bound = 200 * BUDGET[dtype] * exact.abs().max().item() * m
        _compare(f"newton_schulz, {start}, {iterations}", out, exact, torch.full_like(exact, bound))

    return run


def variance(rng: random.Random) -> Case:
    shape = (rng.choice((1, 2)), rng.choice((1, 3)), rng.choice(_LENGTHS[1:]), rng.choice(_LENGTHS))
    x = _random(rng, shape, rng.choice(DTYPES))
    x = x + rng.choice((0.0, 0.0, 100.0))
    options = _options(rng)

    def run() -> None:
        with _level(options):
            out = ops.column_variance(_laid_out(rng, x), backend=options["backend"])
        exact = x.double().var((0, 2), correction=0)
        bound = 64 * BUDGET[out.dtype] * (x.double().square().mean((0, 2)) + exact)
        _compare("column_variance", out, exact, bound)

    return run


def rotation(rng: random.Random) -> Case:
    n, half, dtype = rng.choice(_LENGTHS), rng.choice(_LENGTHS), rng.choice(DTYPES)
    x, angles = _random(rng, (2, n, 2 * half), dtype), _random(rng, (n, half), torch.float64)
    options = _options(rng)

    def run() -> None:
        with _level(options):
            out = ops.rotate(_laid_out(rng, x), angles.cos(), angles.sin(), backend=options["backend"])
        first, second = x.double().chunk(2, -1)
        turned = torch.complex(first, second) * torch.complex(angles.cos(), angles.sin())
        exact = torch.cat([turned.real, turned.imag], -1)
        _compare("rotate", out, exact, 4 * BUDGET[dtype] * (1 + exact.abs()) * 4)

    return run


def activation(rng: random.Random) -> Case:
    """GELU of any magnitudes, infinities and NaN, and its gradient. PyTorch's own, the reference, has no infinities."""
    dtype, options = rng.choice(DTYPES), _options(rng)
    infinite = () if options["backend"] == "reference" else (math.inf, -math.inf)
    x = _random(rng, (rng.choice((1, 2)), rng.choice(_LENGTHS), rng.choice(_LENGTHS)), dtype)
    x = x * 10 ** rng.uniform(-4, 2)
    if x.numel():
        x.view(-1)[rng.randrange(x.numel())] = rng.choice((0.0, *infinite, math.nan, -6.0, 6e4))

    def run() -> None:
        given, exact = x.clone().requires_grad_(), x.double().requires_grad_()
        with _level(options):
            out = ops.gelu(_laid_out(rng, given), backend=options["backend"])
            (found,) = torch.autograd.grad(out, given, torch.ones_like(out))
        expected = torch.nn.functional.gelu(exact)
        (wanted,) = torch.autograd.grad(expected, exact, torch.ones_like(expected))
        for name, one, other in (("out", out, expected), ("x", found, wanted)):
            bound = 4 * BUDGET[dtype] * (other.detach().abs().nan_to_num(0, 0, 0) + 1)
            _compare(f"gelu, {name}", one.detach(), other.detach(), bound)

    return run


def hidden_layer(rng: random.Random) -> Case:
    """The MLP and all its gradients, also with rows, widths and outputs of 0."""
    rows, d, width, out_width = (rng.choice(_LENGTHS) for _ in range(4))
    dtype = rng.choice(DTYPES[2:])
    shapes = ((*rng.choice(((), (2,))), rows, d), (width, d), (width,), (out_width, width), (out_width,))
    inputs = [_random(rng, shape, dtype) for shape in shapes]
    needed = [rng.random() < 0.7 for _ in inputs]
    options = _options(rng)

    def run() -> None:
        given = [t.clone().requires_grad_(need) for t, need in zip(inputs, needed, strict=True)]
        exact = [t.double().requires_grad_(need) for t, need in zip(inputs, needed, strict=True)]
        with _level(options):
            out = ops.mlp(*(_laid_out(rng, t) for t in given), backend=options["backend"])
            found = _gradients(out, given)
        x, weight1, bias1, weight2, bias2 = exact
        linear, gelu = torch.nn.functional.linear, torch.nn.functional.gelu
        expected = linear(gelu(linear(x, weight1, bias1)), weight2, bias2)
        wanted = _gradients(expected, exact)
        for one, other in zip((out, *found), (expected, *wanted), strict=True):
            bound = 64 * BUDGET[dtype] * ((1 + rows) * (1 + d) * (1 + width) * (1 + out_width)) ** 0.5
            _compare("mlp", one.detach(), other.detach(), torch.full_like(other, bound))

    return run


def _gradients(out: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return torch.autograd.grad(out, wanted, torch.ones_like(out)) if wanted else ()


def attention(rng: random.Random) -> Case:
    """One layer in float32 against itself in float64 on the reference, in training and in evaluation."""
    heads, width = rng.choice((1, 2, 3)), rng.choice((4, 8, 32))
    size = rng.choice(((1, 1), (1, 5), (3, 4), (7, 7), (9, 8), (14, 14), (20, 3)))
    arguments: dict[str, Any] = {
        "grid": rng.choice((1, 2, 3, 7)),
        "gain": rng.choice(("auto", 1.0, 3.0, "learned")),
        "whitening": rng.choice(("running", None)),
        "scale": rng.choice((0.5, 4.0, 20.0)),
    }
    training, options = rng.random() < 0.5, _options(rng)
    tokens = _random(rng, (rng.choice((1, 3)), math.prod(size), heads * width), torch.float32)
    seed = rng.randrange(2**31)

    def run() -> None:
        torch.manual_seed(seed)
        layer = LaplacianAttention(heads * width, heads, **arguments).train(training)
        exact = LaplacianAttention(heads * width, heads, **arguments).train(training).double()
        exact.load_state_dict(layer.state_dict())
        with torch.no_grad(), _level(options), ops.use_backend(options["backend"]):
            out = layer(tokens, size)
        with torch.no_grad(), ops.use_backend("reference"):
            expected = exact(tokens.double(), size)
        bound = 1e-3 * expected.abs().max().item() + 1e-5
        _compare(f"LaplacianAttention({arguments}) on {size}", out, expected, torch.full_like(expected, bound))

    return run


def wrong_call(rng: random.Random) -> Case:
    """One argument that is not what it should be."""
    x, y = _points(rng, special=False)
    bad: Any = rng.choice([nasty.value(rng), x.long(), x[..., :0], x.sum(), x.to(torch.complex64), x.to_sparse(), None])
    w, number = torch.eye(3), rng.choice([*nasty.NUMBERS, None, "x", [], [1, 2, 3], {}])
    calls: list[Callable[[], Any]] = [
        lambda: ops.laplacian_kernel(bad, y, 4.0),
        lambda: ops.laplacian_kernel(x, y, bad),
        lambda: ops.laplacian_kernel(x, y, 4.0, backend=bad),
        lambda: ops.laplacian_matmul(x, y, bad, 4.0),
        lambda: ops.laplacian_kernel(x, y, 4.0, x_rotation=(bad, bad)),
        lambda: ops.newton_schulz(bad),
        lambda: ops.newton_schulz(w, bad if not isinstance(bad, int) or isinstance(bad, bool) or bad < 100 else -1),
        lambda: ops.newton_schulz(w, 6, bad),
        lambda: ops.newton_schulz(w, start=bad),
        lambda: ops.column_variance(bad),
        lambda: ops.rotate(x, bad, bad),
        lambda: ops.inverse_sqrt(w, bad),
        lambda: ops.gelu(bad),
        lambda: ops.gelu(x, backend=bad),
        lambda: ops.laplacian_attention(x[None], x[None], x[None], (number, 1), (1, 1), 4.0),
        lambda: ops.laplacian_attention(x[None], x[None], bad, (x.shape[-2], 1), (1, 1), 4.0),
        lambda: LaplacianAttention(16, 2, grid=number if number not in _LARGE else -1),
        lambda: LaplacianAttention(16, number),
        lambda: LaplacianAttention(16, 2)(x, number),
    ]
    good: list[Any] = [x, torch.ones(5, x.shape[-1]), torch.ones(5), torch.ones(2, 5), torch.ones(2)]
    wrong = rng.randrange(5)
    calls += [lambda: ops.mlp(*good[:wrong], bad, *good[wrong + 1 :])] * 2
    call = rng.choice(calls)

    def run() -> None:
        with expecting(TypeError, ValueError):
            call()

    return run


def _points(rng: random.Random, *, special: bool) -> tuple[Tensor, Tensor]:
    dtype, width = rng.choice(DTYPES), rng.choice(_LENGTHS)
    batch = rng.choice(((), (2,), (2, 3)))
    magnitude = 10 ** rng.uniform(-2, 1) if not special or dtype == torch.float16 else 10 ** rng.uniform(-6, 6)
    x, y = (_random(rng, (*batch, rng.choice(_LENGTHS), width), dtype) * magnitude for _ in range(2))
    if special and x.numel() and y.numel():
        for _ in range(rng.choice((0, 0, 1, 3))):
            rows = rng.choice((x, y)).reshape(-1)
            rows[rng.randrange(len(rows))] = rng.choice((0.0, math.inf, -math.inf, math.nan, 6e4))
        if rng.random() < 0.5:
            x[..., rng.randrange(x.shape[-2]), :] = y[..., rng.randrange(y.shape[-2]), :]
    return x, y


def _random(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _laid_out(rng: random.Random, tensor: Tensor) -> Tensor:
    """The same values, perhaps not contiguous."""
    others = [tensor, tensor, *layouts(tensor).values()] if tensor.numel() and tensor.ndim > 1 else [tensor]
    return rng.choice(others)


def _options(rng: random.Random) -> dict[str, Any]:
    backend = rng.choice(BACKENDS)
    return {"backend": backend, "level": rng.choice(cpu_extension.levels()) if backend == "cpu" else None}


def _level(options: dict[str, Any]) -> Any:
    return cpu_extension.use_level(options["level"])


def _kernel_error(x: Tensor, exact: Tensor) -> Tensor:
    """Distances of up to a hundred scales whose terms were rounded, then one rounding of the result."""
    wide = BUDGET[torch.float64 if x.dtype == torch.float64 else torch.float32]
    return exact * (100 * (x.shape[-1] + 8) * wide + BUDGET[x.dtype]) + torch.finfo(x.dtype).tiny


def _compare(what: str, found: Tensor, exact: Tensor, bound: Tensor) -> None:
    if found.shape != exact.shape:
        raise SilentlyWrong(f"{what}: shape {tuple(found.shape)} instead of {tuple(exact.shape)}")
    wrong = (found.isnan() != exact.isnan()) | ((found.double() - exact).abs() > bound)
    if wrong.any():
        index = tuple(wrong.nonzero()[0].tolist())
        raise SilentlyWrong(
            f"{what}, {found.dtype}: {int(wrong.sum())} of {wrong.numel()} numbers, "
            f"the first at {index}: {found[index].item()} instead of {exact[index].item()}"
        )


_KINDS = (
    *(kernel, kernel, product, product, inverse, variance, rotation),
    *(activation, hidden_layer, attention, wrong_call),
)
