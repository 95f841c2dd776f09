"""Sizes, dtypes and extreme inputs."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from laplacianformer.attention import AblationAttention, LaplacianAttention

from . import oracle
from .oracle import Size, build, tokens

WHITENINGS = ["running", "instance", "full", None]
SIZE = (9, 8)


def autocast(enabled: bool) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if enabled else nullcontext()


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    batch=st.integers(1, 3),
    grid=st.integers(1, 8),
    whitening=st.sampled_from(WHITENINGS),
    training=st.booleans(),
    exact=st.booleans(),
)
def test_any_shape_equals_the_definition(
    size: Size, batch: int, grid: int, whitening: Any, training: bool, exact: bool
) -> None:
    options = {"grid": None, "ratio": grid} if exact else {"grid": grid}
    options |= {"whitening": whitening, "solver": "cholesky"}
    layer, x = build(**options).train(training), tokens(size, batch)
    expected = oracle.evaluate(x, size, layer.state_dict(), training=training, **options).out
    torch.testing.assert_close(layer(x, size), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("whitening", WHITENINGS)
def test_sizes_may_change_from_call_to_call(whitening: Any, training: bool) -> None:
    """An instance that has seen other sizes answers as a fresh one (with the same statistics) does."""
    used = build(whitening=whitening).train(training)
    for size in ((1, 1), (1, 9), (20, 3), (7, 7), (13, 11), (2, 2)):
        fresh = build(whitening=whitening).train(training)
        fresh.load_state_dict(used.state_dict())
        assert torch.equal(used(tokens(size), size), fresh(tokens(size), size))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("options", [{"whitening": w} for w in WHITENINGS] + [
    {"solver": "cholesky"}, {"solver": "conjugate_gradient"}, {"gram": "cross"}, {"kernel": "gaussian"},
    {"landmarks": "conv"},
], ids=str)  # fmt: skip
def test_a_batch_of_zero_works_and_teaches_nothing(options: dict[str, Any], training: bool) -> None:
    layer = build(**options).train(training)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    for size in ((7, 7), (9, 10)):
        x = torch.zeros(0, size[0] * size[1], 16, dtype=torch.float64, requires_grad=True)
        out = layer(x, size)
        assert out.shape == x.shape
        out.sum().backward()
        assert x.grad.shape == x.shape
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in layer.parameters())


def extremes() -> dict[str, Tensor]:
    n = SIZE[0] * SIZE[1]
    x = tokens(SIZE, dim=32, dtype=torch.float32)
    return {
        "tiny": 1e-3 * x,
        "ordinary": x,
        "large": 30 * x,
        "all tokens zero": torch.zeros_like(x),
        "identical tokens": x[:1, :1].expand(2, n, 32),
        "identical within an image": x[:, :1].expand(2, n, 32),
        "far apart": x + 1000.0 * torch.arange(2 * n).view(2, n, 1),
        "one far away": torch.cat([x[:, :-1], 1e4 * x[:, -1:]], dim=1),
    }


def everything_finite(layer: nn.Module, x: Tensor, size: Size, mixed: bool) -> list[str]:
    """The names of what is not."""
    x = x.clone().requires_grad_()
    with autocast(mixed):
        out = layer(x, size)
    out.float().square().mean().backward()
    named = {"out": out, "x": x.grad} | {name: parameter.grad for name, parameter in layer.named_parameters()}
    return [name for name, value in named.items() if value is None or not value.isfinite().all()]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize("name", extremes())
def test_outputs_and_gradients_are_finite(name: str, whitening: Any, mixed: bool, training: bool) -> None:
    torch.manual_seed(0)
    layer = AblationAttention(32, 2, grid=3, whitening=whitening, gain="learned", landmarks="conv").train(training)
    assert everything_finite(layer, extremes()[name], SIZE, mixed) == []


@pytest.mark.parametrize("solver", ["newton_schulz", "conjugate_gradient", "cholesky"])
@pytest.mark.parametrize("gram", ["keys", "cross"])
@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
def test_every_solver_is_finite_on_extreme_inputs(solver: Any, gram: Any, kernel: Any) -> None:
    """With many steps too: past convergence there is nothing left to divide by."""
    for iterations in (6, 20):
        for name, x in extremes().items():
            torch.manual_seed(0)
            layer = AblationAttention(
                32, 2, grid=3, solver=solver, gram=gram, kernel=kernel, iterations=iterations, whitening="instance"
            )
            assert everything_finite(layer, x, SIZE, mixed=False) == [], (name, iterations)


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (7, 7)], ids=str)
@pytest.mark.parametrize("whitening", WHITENINGS)
def test_few_tokens_are_finite(whitening: Any, size: Size) -> None:
    torch.manual_seed(0)
    layer = oracle.layer_class({"whitening": whitening})(32, 2, whitening=whitening)
    assert everything_finite(layer, tokens(size, dim=32, dtype=torch.float32), size, mixed=False) == []


def test_the_far_apart_case_is_one_of_underflow() -> None:
    x = extremes()["far apart"]
    torch.manual_seed(0)
    factors = LaplacianAttention(32, 2, grid=3).factors(x, SIZE)
    assert factors.c.max() == 0


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize(("kind", "budget"), [("float32", 2e-5), ("autocast", 0.02), ("bfloat16", 0.02)])
def test_low_precision_stays_within_its_budget(kind: str, budget: float, whitening: Any, training: bool) -> None:
    """rms of the error over rms of the output, against the same layer in float64."""
    exact = build(dim=32, grid=3, whitening=whitening).train(training)
    x = tokens(SIZE, dim=32).bfloat16().double()
    with torch.no_grad():
        for value in [*exact.parameters(), *exact.buffers()]:
            value.copy_(value.bfloat16())
    wanted = exact(x, SIZE)
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    layer = build(dim=32, grid=3, whitening=whitening).to(dtype).train(training)
    layer.load_state_dict(exact.state_dict())
    with autocast(kind == "autocast"):
        out = layer(x.to(dtype), SIZE)
    assert out.dtype == (torch.float32 if kind == "float32" else torch.bfloat16)
    error = (out.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert error < budget
    assert error > 0


def test_autocast_changes_the_linear_maps_only() -> None:
    """Kernel, solve and whitening stay in float32: with bfloat16 there, 40 Newton-Schulz steps would not converge."""
    layer = build(dim=32, grid=3, iterations=40).float().eval()
    q, k, v = (torch.randn(1, 2, 72, 16) for _ in range(3))
    with autocast(True):
        mixed = layer.mix(q, k, v, SIZE)
    assert torch.equal(mixed, layer.mix(q, k, v, SIZE))


def test_a_float64_layer_stays_in_float64() -> None:
    layer = build(grid=3)
    assert layer(tokens(SIZE), SIZE).dtype == torch.float64
    assert layer.factors(tokens(SIZE), SIZE).z.dtype == torch.float64
    assert layer.whitening.running_var.dtype == torch.float64
