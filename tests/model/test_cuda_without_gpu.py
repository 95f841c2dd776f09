"""What can be known of the model on CUDA without a GPU: nothing in it waits for the GPU or depends on its numbers."""

import pytest
import timm
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import laplacianformer  # noqa: F401  registers the models

SMALL = {"depths": (1, 1, 1, 1), "num_classes": 4, "drop_path_rate": 0.1}
# Operations whose result, or its shape, the host has to wait for.
WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "is_nonzero",
    "equal",
    "item",
    "repeat_interleave",
)


class Watch(TorchDispatchMode):
    """Notes operations that wait for the device, and copies between it and the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.count += 1
        name = function.name().removeprefix("aten::").partition(".")[0]
        given = {t.device.type for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor) and t.ndim}
        made = {t.device.type for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, torch.Tensor)}
        # A number on the host may enter any operation; only a copy brings one back.
        copied = name in ("_to_copy", "copy_") and len(made | {t.device.type for t in args if hasattr(t, "device")}) > 1
        if copied or name.strip("_") in {w.strip("_") for w in WAITING} or len(given | made) > 1:
            self.found.append(f"{function.name()} {given} -> {made}")
        # A mask as an index: its result has as many elements as the mask is true.
        if name == "index" and any(t is not None and t.dtype == torch.bool for t in args[1]):
            self.found.append("index by a mask")
        return out


def build(device: str, training: bool) -> torch.nn.Module:
    with torch.device(device):
        return timm.create_model("laplacianformer_nano", **SMALL).train(training)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_forward_on_cuda_stays_on_the_device_and_never_waits(training, autocast, monkeypatch):
    # Autocast would switch itself off where there is no GPU.
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    with FakeTensorMode():
        model, x = build("cuda", training), torch.randn(2, 3, 48, 40, device="cuda")
        with Watch() as watch, torch.autocast("cuda", dtype=torch.float16, enabled=autocast):
            out = model(x)
    assert (out.device.type, out.dtype) == ("cuda", torch.float16 if autocast else torch.float32)
    assert watch.count > 100
    assert watch.found == []


def test_forward_and_backward_never_wait():
    """The graph of backward needs no GPU where its numbers are on the CPU, and it is the same graph."""
    model, x = build("cpu", True), torch.randn(2, 3, 48, 40)
    with Watch() as watch:
        model(x).square().mean().backward()
    assert watch.count > 300
    assert watch.found == []


def test_backward_needs_no_numbers():
    model, x = build("meta", True), torch.randn(2, 3, 48, 40, device="meta")
    model(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())


def test_one_graph_on_cuda_without_breaks():
    """Export traces the whole model, as torch.compile(fullgraph=True) does, and fails on anything it can't."""
    with FakeTensorMode():
        program = torch.export.export(build("cuda", False), (torch.randn(2, 3, 48, 40, device="cuda"),))
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    values = [node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert {value.device.type for value in values} == {"cuda"}
    names = {str(node.target) for node in nodes}
    assert any("laplacian_matmul" in name for name in names)
    assert not any(f"aten.{waiting}" in name for name in names for waiting in WAITING)


def test_the_watch_sees_what_waits():
    with Watch() as watch:
        x = torch.randn(3)
        x.sum().item()
        x[x > 0]
        x.nonzero()
    assert len(watch.found) >= 3
    with FakeTensorMode(), Watch() as watch:
        torch.randn(3, device="cuda").sum().cpu()
    assert len(watch.found) == 1
