"""Looking inside: `factors()` is the unfolded definition, agrees with the folded forward, and changes nothing."""

from typing import Any

import pytest
import torch

from . import oracle
from .oracle import build, tokens

CASES: list[dict[str, Any]] = [
    {},
    {"whitening": "instance"},
    {"whitening": "full"},
    {"whitening": None},
    {"gain": "learned", "whitening": "full"},
    {"gram": "cross"},
    {"kernel": "gaussian", "gain": 3.0},
    {"landmarks": "conv", "tied": True},
    {"grid": None, "ratio": 2},
    {"grid": None},
]


def global_branch(layer: torch.nn.Module, x: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """What forward computes, folded: proj(mixed + DWC(V)) solved for the mixed part. And V."""
    _, _, values = layer.project(x, size)
    joined = torch.linalg.solve(layer.proj.weight, (layer(x, size) - layer.proj.bias).mT).mT
    return (joined - layer.local(values, size)).unflatten(-1, (2, -1)).transpose(1, 2), values


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_folded_equals_unfolded(options: dict[str, Any], training: bool) -> None:
    size, x = (5, 4), tokens((5, 4))
    layer = build(**{"grid": 3, **options}).train(training)
    factors = layer.factors(x, size, dense=True)
    mixed, values = global_branch(layer, x, size)
    torch.testing.assert_close(factors.z @ factors.landmark_values, mixed, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(factors.dense @ values, mixed, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_factors_are_those_of_the_definition(options: dict[str, Any], training: bool) -> None:
    size, x, options = (5, 4), tokens((5, 4)), {"grid": 3, **options, "solver": "cholesky"}
    layer = build(**options).train(training)
    found = layer.factors(x, size)
    wanted = oracle.evaluate(x, size, layer.state_dict(), training=training, **options)
    for name in ("c", "w", "landmark_values", "z"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-9, atol=1e-9)
    assert found.dense is None


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("whitening", ["running", "instance", "full", None])
def test_looking_inside_changes_nothing(whitening: Any, training: bool) -> None:
    size, x = (5, 4), tokens((5, 4))
    layer, twin = (build(grid=3, whitening=whitening).train(training) for _ in range(2))
    factors = layer.factors(x, size, dense=True)
    assert not any(tensor.requires_grad for tensor in factors)
    assert layer.training == training
    for (name, tensor), other in zip(layer.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(tensor, other), name
    assert torch.equal(layer(x, size), twin(x, size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_factors_under_autocast_take_the_tokens_that_forward_takes(dtype: torch.dtype) -> None:
    layer = build(grid=3).float().eval()
    x = tokens((5, 4), dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x, (5, 4))
        factors = layer.factors(x, (5, 4))
    exact = layer.factors(x.float(), (5, 4))
    assert factors.z.dtype == torch.float32
    torch.testing.assert_close(factors.z, exact.z, rtol=0.05, atol=0.02)


def test_factors_have_the_stated_shapes() -> None:
    factors = build(grid=3).factors(tokens((5, 4)), (5, 4), dense=True)
    assert [tuple(tensor.shape) for tensor in factors] == [
        (2, 2, 20, 9), (2, 2, 9, 9), (2, 2, 9, 8), (2, 2, 20, 9), (2, 2, 20, 20),
    ]  # fmt: skip
