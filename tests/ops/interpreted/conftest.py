import pytest

from laplacianformer.ops import triton_support

# tests/ops/test_triton.py runs these in a process of its own.
collect_ignore_glob = [] if triton_support.interpreted() else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def interpreter() -> None:
    from laplacianformer import ops

    assert ops.backends()["triton"] is None
