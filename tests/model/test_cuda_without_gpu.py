"""The model on CUDA, checked without a GPU: nothing in it waits for the GPU or depends on values computed there."""

import importlib
import importlib.util
import inspect
from contextlib import nullcontext

import pytest
import timm
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import laplacianformer  # noqa: F401  registers the models
from laplacianformer.ops import use_backend

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
    """Records operations that wait for the device, and copies between it and the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.count = 0
        self.ours: list[tuple[str, tuple]] = []  # calls of the package's own ops

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.count += 1
        name = function.name().removeprefix("aten::").partition(".")[0]
        if function.namespace == "laplacianformer":
            self.ours.append((name.removeprefix("laplacianformer::"), args))
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


@pytest.mark.parametrize(("training", "autocast"), [(True, False), (False, True)])
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


def test_a_mask_on_cuda_is_not_waited_for(monkeypatch):
    """Whether all tokens count is a question to the GPU. Fake tensors would not be asked: they count as traced."""
    monkeypatch.setattr("laplacianformer.attention._grid.is_traced", lambda: False)
    with FakeTensorMode(), torch.device("cuda"):
        model = timm.create_model("laplacianformer_nano", **SMALL)
        x, mask = torch.randn(2, 3, 64, 64), torch.ones(2, 64, 64, dtype=torch.bool)
        with Watch() as watch:
            maps = model.forward_intermediates(x, intermediates_only=True, mask=mask)
    assert {each.device.type for each in maps} == {"cuda"}
    assert watch.found == []


def test_forward_and_backward_never_wait():
    """The graph of backward needs no GPU where its numbers are on the CPU, and it is the same graph."""
    model, x = build("cpu", True), torch.randn(2, 3, 48, 40)
    with Watch() as watch:
        model(x).square().mean().backward()
    assert watch.count > 300
    assert watch.found == []


def test_backward_needs_no_values():
    model, x = build("meta", True), torch.randn(2, 3, 48, 40, device="meta")
    model(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())


@pytest.mark.slow
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


def test_waiting_operations_are_detected():
    with Watch() as watch:
        x = torch.randn(3)
        x.sum().item()
        x[x > 0]
        x.nonzero()
    assert len(watch.found) >= 3
    with FakeTensorMode(), Watch() as watch:
        torch.randn(3, device="cuda").sum().cpu()
    assert len(watch.found) == 1


@pytest.fixture
def launches(monkeypatch):
    """Triton kernels are recorded instead of launched: (kernel, grid, arguments, options)."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    from triton.runtime.jit import KernelInterface

    found = []

    def note(kernel, grid):
        return lambda *args, **options: found.append((kernel, grid, args, options))

    monkeypatch.setattr(KernelInterface, "__getitem__", note)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return found


def on_cuda(argument):
    if not isinstance(argument, torch.Tensor):
        return argument
    return torch.empty_strided(argument.shape, argument.stride(), dtype=argument.dtype, device="cuda")


def run_host_code(op, args):
    """What the `triton` backend does on the host for a call of an op, on fake CUDA tensors."""
    module = importlib.import_module(f"laplacianformer.ops.{op.removesuffix('_backward')}.triton")
    function = module.backward if op.endswith("_backward") else module.forward
    given = [argument for argument in args if argument is not None]  # rotations are for the `cpu` backend
    count = len(inspect.signature(function).parameters)
    with FakeTensorMode(), Watch() as watch:
        out = function(*map(on_cuda, given[:count]))
    assert watch.found == [], op
    results = [t for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
    assert {t.device.type for t in results} == {"cuda"}
    return results


def check_launches(launches):
    """Grids and numbers are Python's own, tensors are on the GPU, and every argument of the kernel is there."""
    for kernel, grid, args, options in launches:
        assert all(type(size) is int and size > 0 for size in grid)
        assert all(t.is_cuda if isinstance(t, torch.Tensor) else type(t) in (int, float) for t in args)
        assert all(type(value) in (int, str, bool) for value in options.values())
        tuned = set(kernel.configs[0].kwargs) if hasattr(kernel, "configs") else set()
        assert {*kernel.arg_names[: len(args)], *options, *tuned} >= set(kernel.arg_names)


def test_the_host_code_of_the_kernels_never_waits_in_a_training_step(launches):
    """A step of training on a CPU says which ops are called, on what; the GPU's host code for each runs here.

    It is the reference's step: as on a GPU, and unlike the `cpu` backend's, its kernels take rotated rows.
    """
    with use_backend("reference"), Watch() as watch:
        build("cpu", True)(torch.randn(2, 3, 48, 40)).square().mean().backward()
    ops = {op for op, _ in watch.ours}
    assert {"laplacian_matmul", "laplacian_matmul_backward", "newton_schulz", "newton_schulz_backward"} <= ops
    assert {"laplacian_kernel", "laplacian_kernel_backward", "column_variance", "column_variance_backward"} <= ops
    for op, args in watch.ours:
        run_host_code(op, args)
    check_launches(launches)
    assert len(launches) >= len(ops)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_host_code_of_the_kernels_never_waits(launches, dtype):
    make = lambda *shape: torch.empty(shape, dtype=dtype, device="meta")
    x, y, values = make(2, 300, 33), make(2, 49, 33), make(2, 49, 65)
    for op, *args in (
        ("laplacian_kernel", x, y, 4.0),
        ("laplacian_kernel_backward", make(2, 300, 1).expand(2, 300, 49), x, y, make(2, 300, 49), 4.0),
        ("laplacian_matmul", x, y, values, 4.0),
        ("laplacian_matmul_backward", make(2, 1, 65).expand(2, 300, 65), x, y, values, 4.0),
        ("laplacian_matmul_backward", make(1, 1 << 17, 8), make(1, 1 << 17, 8), make(1, 512, 8), make(1, 512, 8), 4.0),
    ):
        launches.clear()
        results = run_host_code(op, args)
        assert launches
        assert {t.dtype for t in results} == {dtype}
        check_launches(launches)


@pytest.mark.parametrize(("m", "count"), [(16, 1), (49, 1), (100, 1), (196, 0)])
@pytest.mark.parametrize("start", ["identity", "transpose"])
def test_the_host_code_of_newton_schulz_never_waits_and_launches_once(launches, m, count, start):
    """Above 128 rows its products are torch's."""
    w = torch.empty(3, m, m, device="meta")
    run_host_code("newton_schulz", (w, 6, 1e-2, start))
    assert len(launches) == count
    run_host_code("newton_schulz_backward", (w, w, 6, 1e-2, start))
    assert len(launches) == 3 * count
    check_launches(launches)
