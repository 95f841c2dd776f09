"""The attention in training, one C++ call per direction: the numbers of the composition, gradients too."""

import copy
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from laplacianformer import LaplacianAttention
from laplacianformer.ops import _cpu_extension as cpu_extension
from tests.attention.fused import LEVELS, MISSING, SETTINGS, SIZES, composed, layer, random_projection

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"no C++ extension: {MISSING}")

Numbers = dict[str, torch.Tensor]


def step(attention: LaplacianAttention, qkv: torch.Tensor, size: tuple[int, int], grad: torch.Tensor) -> Numbers:
    """What a training step of a copy of the layer computes: the result, all gradients, the running variance."""
    attention = copy.deepcopy(attention).to(qkv.dtype).train()
    qkv = qkv.detach().requires_grad_()
    out = attention.mix(*qkv.unbind(0), size)
    out.backward(grad.to(out.dtype))
    assert qkv.grad is not None
    found = {"out": out.detach(), "queries": qkv.grad[0], "keys": qkv.grad[1], "values": qkv.grad[2]}
    found["variance"] = attention.whitening.running_var
    if isinstance(attention.gain, torch.Tensor):
        assert attention.gain.grad is not None
        found["gain"] = attention.gain.grad
    return found


def composed_step(*arguments: Any) -> Numbers:
    with composed():
        return step(*arguments)


def assert_as_exact(found: Numbers, other: Numbers, exact: Numbers) -> None:
    """Errors of the size of another's. Where features of a query and of a landmark nearly agree, rounding may turn the
    sign in a gradient: few numbers are far off then."""
    for name, expected in exact.items():
        largest = expected.abs().max()
        error, allowed = ((numbers[name] - expected).abs().flatten() for numbers in (found, other))
        far, far_allowed = error > 1e-3 * largest, allowed > 1e-3 * largest
        assert far.sum() <= far_allowed.sum() + 0.001 * far.numel(), name
        assert error[~far].max() <= 4 * allowed[~far_allowed].max() + 1e-5 * largest, name


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_is_as_exact_as_the_composition(
    size: tuple[int, int], settings: dict[str, Any], level: str, calls: list[str], poisoned: None
) -> None:
    attention, qkv = layer(**settings), random_projection(size)
    grad = torch.randn(2, size[0] * size[1], 2, 32).transpose(1, 2)
    with cpu_extension.use_level(level):
        together = step(attention, qkv, size, grad)
        assert calls == ["trained"]
        separate = composed_step(attention, qkv, size, grad)
    exact = composed_step(attention, qkv.double(), size, grad)
    assert calls == ["trained"]
    assert_as_exact(together, separate, exact)


@pytest.mark.parametrize(("heads", "width"), [(1, 4), (3, 12), (2, 20), (5, 64)])
@pytest.mark.parametrize("size", [(9, 8), (2, 2), (20, 13)])
def test_with_heads_of_any_width(heads: int, width: int, size: tuple[int, int], poisoned: None) -> None:
    torch.manual_seed(1)
    attention, qkv = LaplacianAttention(heads * width, heads), random_projection(size, 3, heads, width)
    grad = torch.randn(3, heads, size[0] * size[1], width)
    together, exact = step(attention, qkv, size, grad), step(attention, qkv.double(), size, grad)
    assert_as_exact(together, composed_step(attention, qkv, size, grad), exact)


def test_twice_gives_the_same_bits_on_any_number_of_threads() -> None:
    attention, qkv, grad = layer(), random_projection((30, 31)), torch.randn(2, 2, 930, 32)
    before = torch.get_num_threads()
    runs = []
    try:
        for threads in (1, 2, 3, 1):
            torch.set_num_threads(threads)
            runs.append(step(attention, qkv, (30, 31), grad))
    finally:
        torch.set_num_threads(before)
    for run in runs[1:]:
        for name, found in run.items():
            assert torch.equal(found, runs[0][name]), name


def test_reads_any_layout() -> None:
    """Dense or not, with the gradient of a sum, whose strides are 0, and one whose last dimension is not dense."""
    attention, qkv = layer(), random_projection((10, 10))
    strided = qkv.transpose(-1, -2).contiguous().transpose(-1, -2)
    for grad in (torch.ones(()).expand(2, 2, 100, 32), torch.randn(2, 2, 32, 100).transpose(-1, -2)):
        expected = step(attention, qkv.contiguous(), (10, 10), grad.contiguous())
        for layout in (qkv, strided):
            for name, found in step(attention, layout, (10, 10), grad).items():
                assert torch.equal(found, expected[name]), name


def test_each_gradient_alone() -> None:
    """Only what wants one gets one, and it is the same."""
    size, grad = (9, 9), torch.randn(2, 2, 81, 32)
    attention = layer(gain="learned").train()
    inputs = [t.contiguous() for t in random_projection(size)]

    def gradients(wanted: list[bool]) -> list[torch.Tensor | None]:
        *qkv, gain = (t.detach().requires_grad_(w) for t, w in zip([*inputs, attention.gain], wanted, strict=True))
        attention.gain = torch.nn.Parameter(gain, requires_grad=wanted[3])
        attention.mix(*qkv, size).backward(grad)
        return [t.grad for t in (*qkv, attention.gain)]

    together = gradients([True] * 4)
    for i in range(4):
        alone = gradients([i == j for j in range(4)])
        assert [g is None for g in alone] == [i != j for j in range(4)]
        assert torch.equal(alone[i], together[i])  # type: ignore[arg-type]


def test_the_variance_enters_the_running_average_once(calls: list[str]) -> None:
    attention, other = layer().train(), layer().train()
    tokens = torch.randn(2, 144, 64, requires_grad=True)
    attention(tokens, (12, 12)).sum().backward()
    assert calls == ["trained"]
    assert attention.whitening.num_batches_tracked == 1
    with composed():
        other(tokens, (12, 12))
    torch.testing.assert_close(attention.whitening.running_var, other.whitening.running_var)
    before = attention.whitening.running_var.clone()
    attention.whitening.paused = True
    attention(tokens, (12, 12))
    assert torch.equal(attention.whitening.running_var, before)


def test_checkpointing_gives_the_same_gradients(calls: list[str]) -> None:
    tokens = torch.randn(2, 144, 64)
    grads = []
    for recompute in (False, True):
        attention, x = layer().train(), tokens.clone().requires_grad_()
        out = checkpoint(attention, x, (12, 12), use_reentrant=False) if recompute else attention(x, (12, 12))
        out.square().sum().backward()
        grads.append(x.grad)
    assert len(calls) == 3
    assert torch.equal(*grads)


def test_equal_tokens_have_no_gradient_by_distance() -> None:
    """The mean of equal tokens is the token, to the bit: signs of differences are 0."""
    attention = layer(rope=False)
    for size in [(9, 9), (20, 13), (56, 56)]:
        qkv = torch.randn(3, 1, 2, 1, 32).expand(3, 1, 2, size[0] * size[1], 32).clone()
        qkv[0] = qkv[1]
        assert step(attention, qkv, size, torch.randn(1, 2, size[0] * size[1], 32))["queries"].abs().max() == 0


def test_no_gradient_arrives() -> None:
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> None:
            return None

    attention, tokens = layer().train(), torch.randn(1, 81, 64, requires_grad=True)
    q, k, v = attention.project(tokens, (9, 9))
    (Dropped.apply(attention.mix(q, k, v, (9, 9))).sum() + v.sum()).backward()
    assert tokens.grad is not None
    assert tokens.grad.isfinite().all()


def test_what_was_kept_may_come_back_in_another_layout() -> None:
    attention, qkv, grad = layer(gain="learned"), random_projection((10, 9)), torch.randn(2, 2, 90, 32)
    expected = step(attention, qkv, (10, 9), grad)

    def turned(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, turned):
        found = step(attention, qkv, (10, 9), grad)
    for name, numbers in found.items():
        assert torch.equal(numbers, expected[name]), name
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.half(), lambda tensor: tensor)
    with hooks, pytest.raises(RuntimeError, match="float32"):
        step(attention, qkv, (10, 9), grad)


def test_batched_gradients_and_graphs_of_gradients_use_the_composition() -> None:
    attention, size = layer(gain="learned").train(), (9, 9)
    qkv = [t.contiguous().requires_grad_() for t in random_projection(size)]
    wanted = [*qkv, attention.gain]
    grads = torch.randn(3, 2, 2, 81, 32)
    out = attention.mix(*qkv, size)
    one_each = [torch.autograd.grad(out, wanted, grad, retain_graph=True) for grad in grads]
    batched = torch.autograd.grad(out, wanted, grads, retain_graph=True, is_grads_batched=True)
    for found, expected in zip(batched, map(torch.stack, zip(*one_each, strict=True)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    graph = torch.autograd.grad(out, wanted, grads[0], create_graph=True)
    for found, expected in zip(graph, one_each[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert all(second.isfinite().all() for second in torch.autograd.grad(graph[0].sum(), wanted))


@pytest.mark.parametrize("changed", ["evaluation", "gain", "autocast", "counted"])
@pytest.mark.parametrize("size", [(9, 9), (7, 7)])
def test_gradients_by_the_composition_are_those_of_the_step_that_ran(changed: str, size: tuple[int, int]) -> None:
    """Whatever has become of the layer since."""
    attention, count = layer(gain="learned").train(), size[0] * size[1]
    qkv = [t.contiguous().requires_grad_() for t in random_projection(size)]
    grad = torch.randn(2, 2, count, 32)
    wanted = [*qkv, torch.tensor([0.5, 2.0], requires_grad=True) if changed == "gain" else attention.gain]
    if changed == "gain":
        out = torch.func.functional_call(Mixing(attention, size), {"attention.gain": wanted[3]}, (qkv,))
    else:
        out = attention.mix(*qkv, size)
    expected = torch.autograd.grad(out, wanted, grad, retain_graph=True)
    if changed == "evaluation":
        attention.eval()
    if changed == "counted":
        with FlopCounterMode(display=False) as counter:
            found = torch.autograd.grad(out, wanted, grad)
        assert counter.get_total_flops() > 0
    else:
        with torch.autocast("cpu", torch.bfloat16, enabled=changed == "autocast"):
            found = torch.autograd.grad(out, wanted, grad, create_graph=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert attention.whitening.num_batches_tracked == 1


class Mixing(torch.nn.Module):
    def __init__(self, attention: LaplacianAttention, size: tuple[int, int]) -> None:
        super().__init__()
        self.attention, self.size = attention, size

    def forward(self, qkv: list[torch.Tensor]) -> torch.Tensor:
        return self.attention.mix(*qkv, self.size)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_in_vmap() -> None:
    attention, size = layer().train(), (9, 9)
    qkv = [t.contiguous().requires_grad_() for t in random_projection(size)]
    grads = torch.randn(3, 2, 2, 81, 32)
    out = attention.mix(*qkv, size)
    expected = [torch.autograd.grad(out, qkv, grad, retain_graph=True) for grad in grads]
    found = torch.func.vmap(lambda grad: torch.autograd.grad(out, qkv, grad, retain_graph=True))(grads)
    for one, others in zip(found, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack(others), rtol=1e-4, atol=1e-5)


def test_queries_that_are_the_keys_are_counted_once_in_graphs_of_gradients() -> None:
    attention, (x, _, v) = layer().train(), random_projection((9, 9), batch=1).unbind(0)
    x = x.contiguous().requires_grad_()
    out = attention.mix(x, x, v, (9, 9)).square().sum()
    (plain,) = torch.autograd.grad(out, x, retain_graph=True)
    (graph,) = torch.autograd.grad(out, x, create_graph=True)
    torch.testing.assert_close(graph, plain, rtol=1e-4, atol=1e-4)
