from collections.abc import Iterator

import pytest

from laplacianformer.ops import _triton_support as triton_support

# tests/ops/test_triton.py runs these in a separate process.
collect_ignore_glob = [] if triton_support.interpreted() else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def interpreter() -> None:
    from laplacianformer import ops

    assert ops.backends()["triton"] is None


@pytest.fixture(scope="session", autouse=True)
def patched_once() -> Iterator[None]:
    """Triton patches its language for a kernel, and again for each call of a function of ours in it: to no effect."""
    from triton.runtime.interpreter import InterpretedFunction

    call = InterpretedFunction.__call__

    def call_patched(self, *args, **rest):
        ours = self.fn.__module__.startswith("laplacianformer.")
        return self.rewrite()(*args, **rest) if ours else call(self, *args, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "__call__", call_patched)
        yield


@pytest.fixture
def last_program_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last program of a launch runs, the one with the largest addresses."""
    from triton.runtime import interpreter

    builder, run = interpreter.interpreter_builder, interpreter.InterpretedFunction.run

    def run_last(self, *args, grid, **rest):
        (programs,) = grid
        monkeypatch.setattr(builder, "set_grid_dim", lambda *_: setattr(builder, "grid_dim", (programs, 1, 1)))
        monkeypatch.setattr(builder, "set_grid_idx", lambda *_: setattr(builder, "grid_idx", (programs - 1, 0, 0)))
        return run(self, *args, grid=(1,), **rest)

    monkeypatch.setattr(interpreter.InterpretedFunction, "run", run_last)
