import asyncio
import importlib
import threading
from pathlib import Path

import pytest
import torch

from laplacianformer import ops
from laplacianformer.ops import _backend as choice

X = torch.zeros(1, 2, 3)
CALLS = {
    "laplacian_kernel": lambda **kwargs: ops.laplacian_kernel(X, X, 4.0, **kwargs),
    "laplacian_matmul": lambda **kwargs: ops.laplacian_matmul(X, X, X, 4.0, **kwargs),
    "newton_schulz": lambda **kwargs: ops.newton_schulz(torch.eye(3), **kwargs),
}
each_op = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def broken_backend(monkeypatch):
    """One more backend, tried first, that can't run on this machine."""
    broken = {"broken": lambda: "it needs a quantum computer", **choice._MISSING}
    monkeypatch.setattr(choice, "_MISSING", broken)
    return "broken"


def test_the_reference_is_always_there_and_the_last_choice():
    assert list(ops.backends())[-1] == "reference"
    assert ops.backends()["reference"] is None
    assert all(reason is None or reason for reason in ops.backends().values())


@each_op
@pytest.mark.parametrize("name", ["cuda-magic", "", "Reference"])
def test_an_unknown_backend_is_refused_with_the_known_ones(call, name):
    with pytest.raises(ValueError, match=f"unknown backend '{name}'.*reference"):
        call(backend=name)
    with pytest.raises(ValueError, match=f"unknown backend '{name}'.*reference"), ops.use_backend(name):
        pass


@each_op
def test_a_forced_backend_that_cannot_run_raises_with_its_reason(call, broken_backend):
    assert ops.backends()["broken"] == "it needs a quantum computer"
    with pytest.raises(RuntimeError, match=r"'broken'.*it needs a quantum computer"):
        call(backend="broken")
    with ops.use_backend("broken"), pytest.raises(RuntimeError, match=r"'broken'.*it needs a quantum computer"):
        call()


@each_op
def test_the_automatic_choice_passes_over_a_backend_that_cannot_run(call, broken_backend):
    assert call().isfinite().all()


@each_op
def test_the_argument_overrides_the_context_and_the_inner_context_the_outer(call, broken_backend):
    with ops.use_backend("broken"):
        assert call(backend="reference").isfinite().all()
        with ops.use_backend("reference"):
            assert call().isfinite().all()
        with ops.use_backend(None):
            assert call().isfinite().all()
        with pytest.raises(RuntimeError, match="broken"):
            call()
    assert call().isfinite().all()


@each_op
def test_the_context_ends_after_an_error_as_well(call, broken_backend):
    with pytest.raises(KeyError), ops.use_backend("broken"):
        raise KeyError
    assert call().isfinite().all()


def test_gradient_runs_on_the_backend_of_its_forward(broken_backend):
    x = torch.randn(3, 2, requires_grad=True)
    with ops.use_backend("reference"):
        out = ops.laplacian_kernel(x, x.detach() + 1, 4.0)
    with ops.use_backend("broken"):
        out.sum().backward()
    assert (x.grad != 0).any()


def test_blocks_of_several_threads_overlap_without_a_trace(broken_backend):
    """The first block begins before the second and ends before it: a setting of the process would be left behind."""
    entered, left = threading.Event(), threading.Event()
    found = []

    def other():
        with ops.use_backend("reference"):
            entered.set()
            left.wait()
            found.append(choice.requested(None))
        found.append(choice.requested(None))

    thread = threading.Thread(target=other)
    with ops.use_backend("broken"):
        thread.start()
        entered.wait()
        found.append(choice.requested(None))
    left.set()
    thread.join()
    assert found == ["broken", "reference", ""]
    assert choice.requested(None) == ""


def test_a_block_holds_for_one_task_of_asyncio():
    async def task(name, before, after):
        with ops.use_backend(name):
            before.set()
            await after.wait()
            found = choice.requested(None)
            await asyncio.sleep(0)  # the other task's turn
            return found

    async def tasks():
        first, second = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(task("reference", first, second), task("cpu", second, first))

    assert asyncio.run(tasks()) == ["reference", "cpu"]


def test_the_gradient_in_another_thread_runs_on_the_backend_of_its_forward(broken_backend):
    x = torch.randn(3, 2, requires_grad=True)
    with ops.use_backend("reference"):
        out = ops.laplacian_kernel(x, x.detach() + 1, 4.0)

    def backward():
        with ops.use_backend("broken"):
            out.sum().backward()

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    assert (x.grad != 0).any()


@pytest.mark.slow
def test_environment_variables_choose_the_level_and_force_a_backend_and_the_argument_overrides_it(run_fresh):
    program = (
        "import torch\n"
        "from laplacianformer import ops\n"
        "from laplacianformer.ops import _cpu_extension\n"
        "if ops.backends()['cpu'] is None: assert _cpu_extension.level() == 0, _cpu_extension.level()\n"
        "x = torch.zeros(2, 3)\n"
        "try: ops.laplacian_kernel(x, x, 4.0)\n"
        "except ValueError as error: print(error)\n"
        "ops.laplacian_kernel(x, x, 4.0, backend='reference')\n"
        "with ops.use_backend(None): ops.laplacian_kernel(x, x, 4.0)\n"
        "print('done')\n"
    )
    printed = run_fresh(program, LAPLACIANFORMER_BACKEND="fast", LAPLACIANFORMER_CPU_LEVEL="baseline")
    error, done = printed.splitlines()
    assert error.startswith("unknown backend 'fast' (argument, use_backend or LAPLACIANFORMER_BACKEND)")
    assert done == "done"


def test_every_op_has_one_table_of_its_backends() -> None:
    folders = {path.parent.name for path in Path(ops.__file__).parent.glob("*/op.py")}
    assert len(folders) >= 8
    for name in folders:
        op = importlib.import_module(f"laplacianformer.ops.{name}.op")
        assert isinstance(op.BACKENDS, (choice.Backends, choice.Composed)), name
