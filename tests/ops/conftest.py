from collections.abc import Iterator

import pytest
import torch

from laplacianformer import ops
from laplacianformer.ops import _cpu_extension as cpu_extension
from laplacianformer.ops.linear import onednn
from tests.ops.helpers import BACKENDS


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=cpu_extension.LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set of the `cpu` backend that this machine has."""
    if (missing := ops.backends()["cpu"]) is not None:
        pytest.skip(missing)
    if request.param not in cpu_extension.levels():
        pytest.skip(f"this CPU lacks {request.param}")
    with cpu_extension.use_level(request.param):
        yield request.param


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """torch.empty is filled with NaN, so that an element that is never written shows."""
    algorithms = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
    torch.utils.deterministic.fill_uninitialized_memory = fill


@pytest.fixture
def onednn_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers are computed by oneDNN, whatever their size and the CPU."""
    if (missing := ops.backends()["cpu"]) is not None:
        pytest.skip(missing)
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this PyTorch comes without oneDNN")
    monkeypatch.setattr(onednn, "_LEAST_WORK", 1)
    monkeypatch.setattr(onednn, "_missing", lambda: None)


@pytest.fixture(params=["blas", "onednn"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Linear layers are computed by either library; by oneDNN with ranges of 8 rows in gradients."""
    if request.param == "onednn":
        request.getfixturevalue("onednn_products")
        monkeypatch.setattr(onednn, "_ROWS", 8)
    else:
        monkeypatch.setattr(onednn, "_missing", lambda: "not in this test")
    return str(request.param)
