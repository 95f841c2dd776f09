"""What the tests of the fused C++ call watch and set up."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from laplacianformer.ops.laplacian_attention import op


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which C++ call was made in place of the other ops: "evaluated" or "trained", one entry per call."""
    made: list[str] = []
    original = op.BACKENDS.cpu

    def noted(*arguments: Any) -> Any:
        made.append("trained" if isinstance(arguments[4], str) else "evaluated")
        return original(*arguments)

    monkeypatch.setattr(op, "BACKENDS", replace(op.BACKENDS, cpu=noted))
    return made


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)
