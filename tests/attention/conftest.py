"""What the tests of the branch in one call watch and set up."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from laplacianformer.ops import branch


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of each call that was made in place of the ops."""
    made: list[str] = []

    def noted(name: str) -> Any:
        original = getattr(branch, name)

        def call(*args: Any) -> Any:
            made.append(name)
            return original(*args)

        return call

    for name in ("evaluated", "trained"):
        monkeypatch.setattr(branch, name, noted(name))
    return made


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)
