"""torch.compile in one graph for all sizes, and what an import pulls in."""

from typing import Any

import pytest
import torch
from torch import Tensor

from laplacianformer import SoftmaxAttention

from .oracle import build, tokens


def outcome(call: Any, layer: torch.nn.Module, size: tuple[int, int]) -> list[Tensor]:
    layer.zero_grad()
    x = tokens(size).requires_grad_()
    out = call(x, size)
    (out * tokens(size, seed=3)).sum().backward()
    return [out, x.grad, *(parameter.grad for parameter in layer.parameters())]


def compare(options: dict[str, Any], sizes: list[tuple[int, int]], dynamic: bool) -> None:
    torch._dynamo.reset()
    layer, twin = (build(grid=3, **options) for _ in range(2))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for size in sizes:
        for found, wanted in zip(outcome(compiled, layer, size), outcome(twin, twin, size), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    for (name, found), wanted in zip(layer.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(found, wanted, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.slow
def test_compiled_with_dynamic_sizes_equals_eager_forward_and_backward() -> None:
    compare({}, [(5, 7), (8, 6)], dynamic=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"qk_norm": True},
        {"whitening": "full", "landmarks": "conv"},
        {"solver": "cholesky", "gram": "cross", "gain": "learned"},
    ],
    ids=str,
)
def test_compiled_equals_eager_forward_and_backward(options: dict[str, Any]) -> None:
    compare(options, [(5, 7)], dynamic=False)


@pytest.mark.slow
def test_softmax_compiles_too() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = SoftmaxAttention(16, 2).double()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=False)
    torch.testing.assert_close(compiled(tokens((4, 5)), (4, 5)), layer(tokens((4, 5)), (4, 5)))
