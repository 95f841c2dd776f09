"""Every token its own landmark: out = Z V + DWC(V), nothing is solved, and solving would change nothing."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from . import oracle
from .oracle import Size, build, tokens


class Recorder(TorchDispatchMode):
    """The names of all ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


SOLVES = ("newton_schulz", "cholesky", "linalg")


def solves(layer: torch.nn.Module, size: Size) -> set[str]:
    x = tokens(size).requires_grad_()
    with Recorder() as recorder:
        layer(x, size).sum().backward()
    return {name for name in recorder.names if any(word in name for word in SOLVES)}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("options", [{"grid": 7}, {"grid": 9}, {"grid": None}, {"grid": None, "ratio": 1}], ids=str)
def test_seven_by_seven_tokens_are_the_papers_exact_form(options: dict[str, Any], training: bool) -> None:
    size, x = (7, 7), tokens((7, 7))
    layer = build(whitening="instance", **options).train(training)
    weights = layer.state_dict()
    q, k, v = F.linear(x, weights["qkv.weight"], weights["qkv.bias"]).chunk(3, dim=-1)
    q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in (q, k, v))
    rows, columns = torch.arange(49) // 7, torch.arange(49) % 7
    q, k = (oracle.rotate(part, rows.double(), columns.double()) for part in (q, k))

    kernel = oracle.kernel_matrix(q, k, "laplacian", 4.0)
    deviation = (kernel.var(-2, correction=0, keepdim=True) + 1e-5).sqrt()
    z = (1 + 7 * (kernel - kernel.mean(-1, keepdim=True)) / deviation) / 49
    local = F.conv2d(
        v.transpose(1, 2).reshape(2, 7, 7, 16).permute(0, 3, 1, 2), weights["dwc.weight"], weights["dwc.bias"],
        padding=1, groups=16,
    )  # fmt: skip
    joined = (z @ v).transpose(1, 2).flatten(2) + local.flatten(2).mT
    expected = F.linear(joined, weights["proj.weight"], weights["proj.bias"])

    torch.testing.assert_close(layer(x, size), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("solver", ["newton_schulz", "conjugate_gradient", "cholesky"])
@pytest.mark.parametrize("gram", ["keys", "cross"])
def test_at_m_equal_n_nothing_depends_on_the_solver(solver: str, gram: str) -> None:
    size, x = (7, 7), tokens((7, 7), dtype=torch.float32)
    layer = build(solver="newton_schulz").float().eval()
    other = build(solver=solver, gram=gram, iterations=1, eps=0.7).float().eval()
    assert torch.equal(layer(x, size), other(x, size))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("options", [{}, {"solver": "newton_schulz"}, {"solver": "cholesky"}], ids=str)
def test_at_m_equal_n_no_solver_runs(options: dict[str, Any], training: bool) -> None:
    layer = build(**options).train(training)
    assert solves(layer, (7, 7)) == set()
    assert solves(layer, (3, 5)) == set()
    assert solves(layer, (7, 8)), "the record must see the solver where it does run"


@pytest.mark.parametrize("solver", ["cholesky", "newton_schulz", "conjugate_gradient"])
def test_solving_at_m_equal_n_tends_to_the_values(solver: str) -> None:
    """A filter of landmarks that is the identity makes the layer solve with Km = K; the error falls as eps."""
    size, x = (5, 6), tokens((5, 6))
    errors = []
    for eps in (1e-2, 1e-4, 1e-6):
        layer = build(landmarks="conv", solver=solver, eps=eps, iterations=60)
        torch.nn.init.dirac_(layer.landmark_filter.weight, groups=16)
        _, _, values = layer.project(x, size)
        errors.append((layer.factors(x, size).landmark_values - values).abs().max().item())
    assert errors[0] > 1e-3
    assert errors[1] < 0.02 * errors[0]
    assert errors[2] < 0.02 * errors[1]


def test_crossed_gram_at_m_equal_n_tends_to_the_values_too() -> None:
    """W = B there as well, but it is badly conditioned: a small ridge is needed."""
    size, x = (4, 4), tokens((4, 4))
    layer = build(landmarks="conv", solver="cholesky", gram="cross", eps=1e-13)
    torch.nn.init.dirac_(layer.landmark_filter.weight, groups=16)
    _, _, values = layer.project(x, size)
    torch.testing.assert_close(layer.factors(x, size).landmark_values, values, rtol=1e-3, atol=1e-3)
