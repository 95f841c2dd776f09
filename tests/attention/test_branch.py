"""The global branch in one call: the same numbers as the ops one by one, and only where nobody can tell."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from laplacianformer import LaplacianAttention
from laplacianformer.ops import backends, branch, use_backend

pytestmark = pytest.mark.skipif(backends()["cpu"] is not None, reason=f"no C++ extension: {backends()['cpu']}")

SIZES = [(56, 56), (14, 9), (8, 7), (30, 31), (7, 60), (3, 200), (1, 50)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that the branch ran in one call."""
    made: list[int] = []
    original = branch.branch

    def noted(*args: Any, **kwargs: Any) -> torch.Tensor:
        made.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(branch, "branch", noted)
    return made


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def layer(**settings: Any) -> LaplacianAttention:
    torch.manual_seed(0)
    made = LaplacianAttention(64, 2, **settings).eval()
    if made.whitening.kind == "running":
        made.whitening.running_var.uniform_(1e-4, 1e-1)
    return made


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "settings",
    [{}, {"gain": "learned", "rope": False}, {"whitening": None, "gain": 4.0, "grid": 4}, {"tied": True, "scale": 0.7}],
)
def test_as_exact_as_one_by_one(
    size: tuple[int, int], settings: dict[str, Any], calls: list[int], poisoned: None
) -> None:
    attention = layer(**settings)
    tokens = torch.randn(2, size[0] * size[1], 64)
    with torch.inference_mode():
        together = attention(tokens, size)
    assert calls
    one_by_one = attention(tokens, size).detach()
    exact = attention.double()(tokens.double(), size).detach()
    error, allowed = ((one - exact).abs().max() for one in (together, one_by_one))
    assert error <= 2 * allowed + 1e-7


@pytest.mark.parametrize("threads", [1, 2])
def test_slices_and_any_number_of_threads(threads: int, calls: list[int]) -> None:
    attention = layer()
    q, k, v = torch.randn(2, 100, 3, 2, 32).permute(2, 0, 3, 1, 4)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            sliced = attention.mix(q, k, v, (10, 10))
            whole = attention.mix(q.contiguous(), k.contiguous(), v.contiguous(), (10, 10))
            strided = attention.mix(*(t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in (q, k, v)), (10, 10))
    finally:
        torch.set_num_threads(before)
    assert len(calls) == 3
    assert torch.equal(sliced, whole)
    assert torch.equal(sliced, strided)


def test_images_of_a_batch_do_not_touch_each_other(calls: list[int]) -> None:
    attention, tokens = layer(), torch.randn(3, 12 * 11, 64)
    with torch.inference_mode():
        mixed = attention.mix(*attention.project(tokens, (12, 11)), (12, 11))
        first = attention.mix(*(part[1:2] for part in attention.project(tokens, (12, 11))), (12, 11))
    assert len(calls) == 2
    torch.testing.assert_close(mixed[1:2], first, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": "gaussian"},
        {"gram": "cross"},
        {"solver": "cholesky"},
        {"landmarks": "conv"},
        {"whitening": "instance"},
        {"grid": 12},
        {"grid": None},
    ],
)
def test_other_forms_go_one_by_one(settings: dict[str, Any], calls: list[int]) -> None:
    with torch.inference_mode():
        layer(**settings)(torch.randn(1, 169, 64), (13, 13))
    assert not calls


def test_where_someone_looks_on_it_goes_one_by_one(calls: list[int]) -> None:
    attention, tokens = layer(), torch.randn(1, 100, 64)
    attention(tokens, (10, 10))  # gradients
    with torch.inference_mode():
        attention.train()(tokens, (10, 10))
        attention.eval()
        attention.double()(tokens.double(), (10, 10))
        attention.float()
        attention(tokens[:0], (10, 10))
        with use_backend("reference"):
            attention(tokens, (10, 10))
        with FlopCounterMode(display=False) as counter:
            attention(tokens, (10, 10))
        assert counter.get_flop_counts()["Global"][torch.ops.laplacianformer.laplacian_matmul] > 0
        assert not calls
        attention(tokens, (10, 10))
        assert calls


def test_under_autocast(calls: list[int]) -> None:
    """The branch itself stays in float32."""
    attention, tokens = layer(), torch.randn(1, 100, 64)
    with torch.inference_mode():
        exact = attention(tokens, (10, 10))
        with torch.autocast("cpu", torch.bfloat16):
            rounded = attention(tokens, (10, 10))
    assert len(calls) == 2
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.05)


def test_a_dead_token_stays_seen() -> None:
    """NaN goes where it went: into everything that looks at its landmark."""
    attention, tokens = layer(), torch.randn(1, 100, 64)
    tokens[0, 5] = float("nan")
    with torch.inference_mode():
        assert attention(tokens, (10, 10)).isnan().all()


def test_a_learned_gain_alone_gets_its_gradient() -> None:
    """With everything else frozen, also in evaluation."""
    layer = LaplacianAttention(16, 2, grid=2, gain="learned").eval()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == "gain")
    layer(torch.randn(1, 16, 16), (4, 4)).square().sum().backward()
    assert layer.gain.grad is not None
    assert layer.gain.grad.abs().min() > 0
