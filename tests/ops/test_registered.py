"""Ops called without torch.library give what the registered ops give, and only where nobody observes the call."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from laplacianformer import LaplacianAttention, ops
from laplacianformer.ops import _registered as registered
from laplacianformer.ops import _tracing as tracing

CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "laplacian_kernel": lambda x, y: ops.laplacian_kernel(x, y, 2.0),
    "laplacian_matmul": lambda x, y: ops.laplacian_matmul(x, y, y.sin(), 2.0),
    "newton_schulz": lambda x, y: ops.newton_schulz(ops.laplacian_kernel(y, y, 2.0), start="identity"),
    "column_variance": lambda x, y: ops.column_variance(x) * y.sum(),
    "rotate": lambda x, y: ops.rotate(x, *torch.ones(2, x.shape[-2], x.shape[-1] // 2).unbind()) * y.sum(),
}


class Spectator(TorchDispatchMode):
    """Names of the ops of this package that went through the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "laplacianformer":
            self.seen.add(func.name().removeprefix("laplacianformer::"))
        return func(*args, **(kwargs or {}))


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 3, rows, 4, generator=generator) for rows in (11, 5))
    return x.requires_grad_(), y.requires_grad_()


def gradients(call: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    x, y = inputs()
    out = call(x, y)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), (x, y), materialize_grads=True)]


@pytest.mark.parametrize("name", CALLS)
def test_the_bits_are_those_of_the_registered_op(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gradients(CALLS[name])
    with torch.no_grad():
        found.append(CALLS[name](*inputs()))
    monkeypatch.setattr(registered, "is_unobserved", lambda *arguments: False)
    expected = gradients(CALLS[name])
    expected.append(expected[0])
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", CALLS)
def test_nothing_goes_through_the_library_where_nobody_looks_on(name: str) -> None:
    with torch.profiler.profile() as profiler:
        gradients(CALLS[name])
    seen = {event.key for event in profiler.key_averages()}
    assert any(key.startswith("laplacianformer_cpu::") for key in seen) or ops.backends()["cpu"] is not None
    assert not any(key.startswith("laplacianformer::") for key in seen)


@pytest.mark.parametrize("name", CALLS)
def test_whoever_looks_on_sees_the_registered_op(name: str) -> None:
    with Spectator() as spectator:
        gradients(CALLS[name])
    assert name in spectator.seen
    assert name == "rotate" or f"{name}_backward" in spectator.seen


@pytest.mark.parametrize("name", CALLS)
def test_nothing_of_it_is_computed_on_fake_tensors(name: str) -> None:
    x, y = inputs()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = CALLS[name](mode.from_tensor(x.detach()), mode.from_tensor(y.detach()))
    assert isinstance(out, FakeTensor)
    assert out.shape == CALLS[name](x, y).shape


@pytest.mark.parametrize("name", CALLS)
def test_outputs_are_where_the_inputs_are(name: str) -> None:
    """Also where another device is the default one."""
    x, y = inputs()
    tables = [torch.ones(x.shape[-2], x.shape[-1] // 2) for _ in range(2)]
    call = (lambda x, y: ops.rotate(x, *tables)) if name == "rotate" else CALLS[name]
    with torch.device("meta"):
        assert call(x, y).device.type == "cpu"


def test_modes_of_other_threads_change_nothing() -> None:
    """Two spectators whose times overlap: torch's own flag of all threads is then wrong for the second."""
    first, second = Spectator(), Spectator()
    entered, left = threading.Event(), threading.Event()

    def look_on() -> None:
        with second:
            entered.set()
            left.wait()
            CALLS["laplacian_kernel"](*inputs())

    thread = threading.Thread(target=look_on)
    with first:
        thread.start()
        entered.wait()
    left.set()
    thread.join()
    assert second.seen == {"laplacian_kernel"}
    assert tracing.is_unobserved(*inputs())


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", CALLS)
def test_many_gradients_at_once(name: str) -> None:
    x, y = inputs()
    out = CALLS[name](x, y)
    grads = torch.randn(3, *out.shape)
    found = torch.autograd.grad(out, y, grads, is_grads_batched=True, retain_graph=True)[0]
    for a, grad in zip(found, grads, strict=True):
        torch.testing.assert_close(a, torch.autograd.grad(out, y, grad, retain_graph=True)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_layer_can_be_saved(tmp_path: Path) -> None:
    layer = LaplacianAttention(16, 2, grid=2).eval().requires_grad_(False)
    tokens = torch.randn(2, 16, 16)
    expected = layer(tokens, (4, 4))
    traced = torch.jit.trace(lambda x: layer(x, (4, 4)), tokens, check_trace=False)
    torch.jit.save(traced, str(tmp_path / "traced.pt"))
    found = torch.jit.load(str(tmp_path / "traced.pt"))(tokens)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_layer_under_vmap() -> None:
    layer = LaplacianAttention(16, 2, grid=2).eval()
    tokens = torch.randn(3, 2, 16, 16)
    with torch.no_grad():
        found = torch.func.vmap(lambda x: layer(x, (4, 4)))(tokens)
        for a, b in zip(found, tokens, strict=True):
            torch.testing.assert_close(a, layer(b, (4, 4)), rtol=1e-5, atol=1e-6)
