"""One C++ call on sequences, images and volumes, with masks and leading tokens: the numbers of the composition."""

import copy
from typing import Literal, NamedTuple

import pytest
import torch
from torch import Tensor

from laplacianformer import LaplacianAttention
from laplacianformer.ops import _cpu_extension as cpu_extension
from tests.attention.fused import LEVELS, MISSING, composed
from tests.attention.test_fused_training import Numbers, assert_as_exact

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"no C++ extension: {MISSING}")

HEADS = 2


class Case(NamedTuple):
    size: tuple[int, ...]
    grid: int | tuple[int, ...] | str
    prefix: int
    mask: str | None
    width: int = 16
    rope: bool = True
    gain: Literal["learned", "auto"] = "learned"


CASES = [
    Case((300,), "auto", 0, None),
    Case((300,), 17, 3, None),
    Case((40,), "auto", 1, None),  # every token is a landmark
    Case((23, 14), "auto", 2, None),
    Case((5, 7), "auto", 1, None),
    Case((4, 9, 11), "auto", 0, None),
    Case((5, 6, 7), (2, 3, 2), 1, None, 24),
    Case((300,), "auto", 0, "padding"),
    Case((530,), 100, 1, "padding", 8),
    Case((300,), 33, 2, "holes", 12),
    Case((50,), "auto", 1, "holes"),
    Case((23, 14), "auto", 0, "padding"),
    Case((23, 14), (3, 5), 2, "holes", 20, False),
    Case((6, 7), "auto", 1, "padding"),
    Case((4, 9, 11), "auto", 1, "padding", 12),
    Case((3, 5, 6), (2, 2, 4), 0, "holes", 6, False),
    Case((300,), "auto", 1, None, gain="auto"),
    Case((50,), "auto", 1, "holes", gain="auto"),  # items have different numbers of landmarks, so different gains
    Case((6, 7), "auto", 1, "padding", gain="auto"),
]


def mask_of(case: Case, batch: int = 4) -> Tensor | None:
    """Whole, then smaller boxes, one of them of a single token; the last item has nothing."""
    if case.mask is None:
        return None
    mask = torch.zeros(batch, *case.size, dtype=torch.bool)
    mask[0] = True
    mask[(1, *(slice(-(-2 * length // 3)) for length in case.size))] = True
    mask[(2, *(slice(1) for _ in case.size))] = True
    if case.mask == "holes":
        mask[:2] &= torch.rand(2, *case.size, generator=torch.Generator().manual_seed(3)) < 0.5
    flat = mask.flatten(1)
    before = flat.any(1, keepdim=True).repeat(1, case.prefix)
    return torch.cat([before, flat], dim=1)


def attention_and_tokens(case: Case) -> tuple[LaplacianAttention, Tensor, Tensor | None]:
    torch.manual_seed(0)
    options = {"axes": len(case.size), "grid": case.grid, "prefix": case.prefix, "rope": case.rope}
    layer = LaplacianAttention(HEADS * case.width, HEADS, gain=case.gain, **options)
    for name, buffer in layer.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(1e-3, 1e-1)
    tokens = case.prefix + torch.Size(case.size).numel()
    qkv = torch.randn(4, tokens, 3, HEADS, case.width).permute(2, 0, 3, 1, 4)
    mask = mask_of(case)
    if mask is not None:  # whatever is in the padding, it stays there
        qkv = qkv.masked_fill(~mask[None, :, None, :, None], torch.nan)
    return layer, qkv, mask


def step(layer: LaplacianAttention, qkv: Tensor, case: Case, mask: Tensor | None, grad: Tensor) -> Numbers:
    """The result of a training step, all gradients and the running variances."""
    layer = copy.deepcopy(layer).to(qkv.dtype).train()
    qkv = qkv.detach().clone().requires_grad_()
    out = layer.mix(*qkv.unbind(0), case.size, mask)
    out.backward(grad.to(out.dtype))
    assert qkv.grad is not None
    found = {"out": out.detach(), "queries": qkv.grad[0], "keys": qkv.grad[1], "values": qkv.grad[2]}
    found |= {name: buffer.double() for name, buffer in layer.named_buffers() if name.endswith("running_var")}
    if isinstance(layer.gain, Tensor):
        assert layer.gain.grad is not None
        found["gain"] = layer.gain.grad
    return found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_is_as_exact_as_the_composition(case: Case, level: str, calls: list[str], poisoned: None) -> None:
    layer, qkv, mask = attention_and_tokens(case)
    grad = torch.randn(qkv.shape[1:])
    with cpu_extension.use_level(level):
        found = step(layer, qkv, case, mask, grad)
    assert calls == ["trained"]
    with composed():
        other = step(layer, qkv, case, mask, grad)
    exact = step(layer, qkv.double(), case, mask, grad)
    assert_as_exact(found, other, exact)
    if mask is not None:
        absent = ~mask[:, None, :, None].expand_as(found["out"])
        for name in ("out", "queries", "keys", "values"):
            assert not found[name][absent].any(), f"{name} of padding must be exactly zero"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_evaluation_is_as_exact_as_the_composition(
    case: Case, dtype: torch.dtype, calls: list[str], poisoned: None
) -> None:
    layer, qkv, mask = attention_and_tokens(case)
    layer.eval()
    qkv = qkv.to(dtype)
    with torch.inference_mode():
        found = layer.mix(*qkv, case.size, mask)
        assert calls == ["evaluated"]
        assert found.dtype == dtype
        with composed():
            other = layer.mix(*qkv, case.size, mask)
        exact = copy.deepcopy(layer).double().mix(*qkv.double(), case.size, mask)
    error, allowed = ((numbers.double() - exact).abs().max() for numbers in (found, other))
    assert error <= 2 * allowed + 1e-6


@pytest.mark.parametrize("case", [case for case in CASES if case.mask], ids=str)
def test_the_same_bits_for_any_number_of_threads(case: Case) -> None:
    layer, qkv, mask = attention_and_tokens(case)
    grad, threads = torch.randn(qkv.shape[1:]), torch.get_num_threads()
    found = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(step(layer, qkv, case, mask, grad))
    finally:
        torch.set_num_threads(threads)
    for name, numbers in found[0].items():
        assert torch.equal(numbers, found[1][name]), name
