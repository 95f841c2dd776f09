"""Cost is linear in the tokens: operations and bytes are counted, not seconds."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from laplacianformer.attention import (
    ATTENTIONS,
    AblationAttention,
    GridAttention,
    LaplacianAttention,
    SoftmaxAttention,
)
from tests.ops.helpers import peak_bytes

from .oracle import layer_class

# Tokens of N, 2 N and 4 N; the first is large enough for what does not grow with N to be small.
SIZES: dict[int, list[tuple[int, ...]]] = {
    1: [(1024,), (2048,), (4096,)],
    2: [(32, 32), (32, 64), (64, 64)],
    3: [(8, 8, 16), (8, 16, 16), (16, 16, 16)],
}
LINEAR: list[dict[str, Any]] = [
    {},
    {"whitening": "instance"},
    {"whitening": "full"},
    {"whitening": None},
    {"solver": "cholesky", "gram": "cross"},
    {"kernel": "gaussian", "landmarks": "conv"},
]


def flops(step: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def costs(
    layer: GridAttention, measure: Callable[[Callable[[], Any]], int], backward: bool, masked: bool = False
) -> list[int]:
    device = "meta" if measure is flops else "cpu"  # operations are counted from shapes alone
    layer, found = copy.deepcopy(layer).to(device), []
    for size in SIZES[layer.axes]:
        tokens = layer.prefix + torch.Size(size).numel()
        x = torch.randn(1, tokens, layer.dim, device=device, requires_grad=backward)
        mask = torch.arange(tokens, device=device)[None] < tokens - 1 if masked else None

        def step(x: torch.Tensor = x, size: tuple[int, ...] = size, mask: torch.Tensor | None = mask) -> None:
            with torch.set_grad_enabled(backward):
                out = layer(x, size, mask)
            if backward:
                out.sum().backward()

        if measure is not flops:  # counting makes tables anew each time
            step()  # makes the tables of this size, which are kept
        found.append(measure(step))
    return found


def is_linear(cost: list[int], tolerance: float) -> bool:
    """A fixed part and a part that grows as N: the second doubling adds twice what the first added, or less."""
    first, second = cost[1] - cost[0], cost[2] - cost[1]
    return first > 0 and second <= 2 * first * (1 + tolerance) and cost[2] <= 4 * cost[0] * (1 + tolerance)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward and backward"])
@pytest.mark.parametrize("options", LINEAR, ids=str)
def test_operations_are_linear_in_the_tokens(options: dict[str, Any], backward: bool, training: bool) -> None:
    layer = layer_class(options)(32, 1, **options).train(training)
    assert is_linear(costs(layer, flops, backward), tolerance=0.01)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward and backward"])
@pytest.mark.parametrize("options", LINEAR, ids=str)
def test_bytes_are_linear_in_the_tokens(options: dict[str, Any], backward: bool, training: bool) -> None:
    layer = layer_class(options)(32, 1, **options).train(training)
    assert is_linear(costs(layer, peak_bytes, backward), tolerance=0.1)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("measure", [flops, peak_bytes], ids=["operations", "bytes"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_on_every_grid_with_a_mask_and_leading_tokens(
    axes: int, measure: Callable[..., int], masked: bool, training: bool
) -> None:
    layer = LaplacianAttention(32, 1, axes=axes, prefix=2).train(training)
    # What a convolution needs beside its result depends on the shape a little; quadratic cost would double this.
    assert is_linear(costs(layer, measure, backward=True, masked=masked), tolerance=0.25)


QUADRATIC = ("laplacian", "softmax", "spatial-reduction")  # the first has tests of its own


@pytest.mark.parametrize("measure", [flops, peak_bytes], ids=["operations", "bytes"])
@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name not in QUADRATIC])
def test_the_other_mixers_but_those_of_softmax_are_linear_too(name: str, measure: Callable[..., int]) -> None:
    assert is_linear(costs(ATTENTIONS[name](32, 1), measure, backward=True), tolerance=0.1)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward and backward"])
@pytest.mark.parametrize(
    "layer",
    [AblationAttention(32, 1, grid=None, ratio=4), AblationAttention(32, 1, grid=None), SoftmaxAttention(32, 1)],
    ids=["ratio", "exact", "softmax"],
)
def test_operations_of_the_other_forms_are_not(layer: GridAttention, backward: bool) -> None:
    """So the tests above can fail: with a fixed ratio, m grows with N."""
    cost = costs(layer, flops, backward)
    assert not is_linear(cost, tolerance=0.3)
    assert cost[2] > 6 * cost[0]


def test_bytes_with_a_fixed_ratio_are_not_linear() -> None:
    assert not is_linear(costs(AblationAttention(32, 1, grid=None, ratio=4), peak_bytes, True), tolerance=0.3)


def test_evaluation_never_stores_the_kernel_matrix() -> None:
    """With many landmarks and narrow tokens, where C is by far the largest matrix; the comparisons do store it."""
    x, size = torch.randn(1, 128 * 128, 4), (128, 128)
    layers = (kind(4, 1, grid=16).eval() for kind in (LaplacianAttention, AblationAttention))
    lean, stored = (peak_bytes(partial(layer, x, size)) for layer in layers)
    kernel_bytes = 4 * x.shape[1] * 256
    assert lean < kernel_bytes < stored
