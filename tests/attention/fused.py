"""Layers and inputs for the fused C++ call."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from laplacianformer import LaplacianAttention
from laplacianformer.ops import _cpu_extension as cpu_extension
from laplacianformer.ops import backends
from laplacianformer.ops.laplacian_attention import op

MISSING = backends()["cpu"]
LEVELS = cpu_extension.levels() if MISSING is None else ()

# In the last four every token is a landmark.
SIZES = [(56, 56), (14, 9), (8, 7), (30, 31), (7, 60), (3, 200), (1, 50), (7, 7), (5, 6), (1, 3), (1, 1)]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"gain": "learned", "rope": False},
    {"gain": 4.0, "grid": 4},
    {"scale": 0.7},
]


def layer(**settings: Any) -> LaplacianAttention:
    torch.manual_seed(0)
    made = LaplacianAttention(64, 2, **settings).eval()
    if made.whitening.kind is not None:
        made.whitening.running_var.uniform_(1e-4, 1e-1)
    return made


def random_projection(size: tuple[int, int], batch: int = 2, heads: int = 2, width: int = 32) -> torch.Tensor:
    """Queries, keys and values of a fused projection: (3, batch, heads, tokens, width)."""
    return torch.randn(batch, size[0] * size[1], 3, heads, width).permute(2, 0, 3, 1, 4)


@contextmanager
def composed() -> Iterator[None]:
    """A block in which the attention is the composition of the other ops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op, "BACKENDS", replace(op.BACKENDS, cpu_check=lambda *arguments: "a test wants the composition"))
        yield
