"""The attention in training on bfloat16 and float16 tokens, which are read and written as they are: rounded once."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from laplacianformer import LaplacianAttention
from laplacianformer.ops import _cpu_extension as cpu_extension
from tests.attention.fused import LEVELS, MISSING, SETTINGS, SIZES, composed, layer, random_projection
from tests.ops.helpers import peak_bytes
from tests.pairwise import pairwise

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"no C++ extension: {MISSING}")

HALVES = (torch.bfloat16, torch.float16)
Numbers = dict[str, torch.Tensor]


def step(
    attention: LaplacianAttention,
    qkv: torch.Tensor,
    size: tuple[int, int],
    grad: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> Numbers:
    """A training step of a copy of the layer, whose parameters keep their dtype."""
    attention = copy.deepcopy(attention).train()
    qkv = qkv.detach().requires_grad_()
    out = attention.mix(*qkv.unbind(0), size, mask)
    out.backward(grad)
    assert qkv.grad is not None
    found = {"out": out.detach(), "queries": qkv.grad[0], "keys": qkv.grad[1], "values": qkv.grad[2]}
    found["variance"] = attention.whitening.running_var
    if isinstance(attention.gain, torch.Tensor):
        assert attention.gain.grad is not None
        found["gain"] = attention.gain.grad
    return found


def assert_rounds_once(found: Numbers, exact: Numbers, dtype: torch.dtype) -> None:
    """Tokens and their gradients are off by one rounding of their dtype, the rest by those of float32.

    Where features of a query and of a landmark nearly agree, rounding in float32 may turn the sign in a gradient: few
    numbers are far off then.
    """
    for name, expected in exact.items():
        tokens = name not in ("variance", "gain")
        assert found[name].dtype == (dtype if tokens else torch.float32), name
        error, allowed = (found[name] - expected).abs(), 2e-5 * expected.abs().max()
        if tokens:
            numbers = torch.finfo(dtype)
            allowed = allowed + 1.01 / 2 * numbers.eps * expected.abs().clamp(min=numbers.smallest_normal)
        assert (error > allowed).sum() <= 0.02 * error.numel(), name


@pairwise(
    {
        "size": SIZES,
        "settings": SETTINGS[:3],  # with the fourth, products exceed the numbers of float16
        "dtype": HALVES,
        "level": LEVELS,
        "masked": [False, True],
    }
)
@pytest.mark.usefixtures("poisoned")
def test_each_number_is_rounded_once(
    size: tuple[int, int],
    settings: dict[str, Any],
    dtype: torch.dtype,
    level: str,
    masked: bool,
    calls: list[str],
) -> None:
    attention, qkv = layer(**settings), random_projection(size).to(dtype)
    tokens = size[0] * size[1]
    grad = torch.randn(2, tokens, 2, 32).transpose(1, 2).to(dtype)
    mask = torch.rand(2, tokens) < 0.8 if masked else None
    if mask is not None:
        mask[:, 0] = True
    with cpu_extension.use_level(level):
        together = step(attention, qkv, size, grad, mask)
    assert calls == ["trained"]
    with composed():
        exact = step(attention.double(), qkv.double(), size, grad.double(), mask)
    assert_rounds_once(together, exact, dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("heads", "width"), [(1, 4), (3, 12), (2, 20), (5, 64)])
def test_with_heads_of_any_width(heads: int, width: int, dtype: torch.dtype, poisoned: None) -> None:
    torch.manual_seed(1)
    size = (20, 13)
    attention, qkv = LaplacianAttention(heads * width, heads), random_projection(size, 3, heads, width).to(dtype)
    grad = torch.randn(3, heads, size[0] * size[1], width).to(dtype)
    with composed():
        exact = step(copy.deepcopy(attention).double(), qkv.double(), size, grad.double())
    assert_rounds_once(step(attention, qkv, size, grad), exact, dtype)


@pytest.mark.parametrize("size", [(100, 110), (7, 7)])
def test_same_bits_on_any_number_of_threads_and_in_any_layout(size: tuple[int, int]) -> None:
    """The larger one has more keys than are kept in float32 at a time."""
    count, before = size[0] * size[1], torch.get_num_threads()
    attention, qkv = layer(), random_projection(size, batch=3).bfloat16()
    grad = torch.randn(3, 2, count, 32).bfloat16()
    strided = qkv.transpose(-1, -2).contiguous().transpose(-1, -2)
    runs: list[Callable[[], Numbers]] = [
        lambda: step(attention, qkv, size, grad),
        lambda: step(attention, strided, size, grad.mT.contiguous().mT),
    ]
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found += [run() for run in runs]
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for name, numbers in other.items():
            assert torch.equal(numbers, found[0][name]), name


def test_no_tokens_are_kept_or_copied_in_float32() -> None:
    """With few landmarks, little is needed beyond tokens: inputs are kept, and there are four results."""
    size, batch = (40, 40), 16
    attention, qkv = layer(grid=1), random_projection(size, batch=batch).bfloat16()
    grad = torch.randn(batch, 2, 1600, 32).bfloat16()
    given = [tensor.contiguous().requires_grad_() for tensor in qkv]
    attention.train()

    def once() -> None:
        attention.mix(*given, size).backward(grad)

    tokens = given[0].nbytes
    once()  # gradients are there, and added to
    assert peak_bytes(once) < 5 * tokens + 2 * 2**22


def test_tokens_that_come_back_in_another_dtype_are_refused() -> None:
    attention, qkv, grad = layer(), random_projection((10, 9)).bfloat16(), torch.randn(2, 2, 90, 32).bfloat16()
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.float() if tensor.dtype == torch.bfloat16 else tensor, lambda tensor: tensor
    )
    with hooks, pytest.raises(RuntimeError, match="tokens in the dtype of the result"):
        step(attention, qkv, (10, 9), grad)


def test_graphs_of_gradients_are_those_of_the_composition() -> None:
    attention, size = layer(gain="learned").train(), (9, 9)
    qkv = [tensor.bfloat16().requires_grad_() for tensor in random_projection(size)]
    wanted, grad = [*qkv, attention.gain], torch.randn(2, 2, 81, 32).bfloat16()
    out = attention.mix(*qkv, size)
    plain = torch.autograd.grad(out, wanted, grad, retain_graph=True)
    graph = torch.autograd.grad(out, wanted, grad, create_graph=True)
    for one, other in zip(graph, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=2**-7, atol=1e-3)
    assert all(second.isfinite().all() for second in torch.autograd.grad(graph[0].float().sum(), wanted))
