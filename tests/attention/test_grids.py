"""The layer on sequences, images and volumes, with masks and leading tokens, is its definition on each item alone."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from laplacianformer.attention import LaplacianAttention
from tests.attention.grid_oracle import evaluate

DIM, HEADS = 24, 2


class Case(NamedTuple):
    size: tuple[int, ...]
    grid: tuple[int, ...]
    prefix: int
    rope: bool
    mask: str


CASES = [
    Case((13,), (5,), 0, True, "none"),
    Case((13,), (5,), 2, True, "padding"),
    Case((9,), (16,), 1, True, "padding"),  # every token is a landmark
    Case((11,), (4,), 0, False, "holes"),
    Case((7, 9), (3, 2), 1, True, "none"),
    Case((7, 9), (3, 4), 0, True, "padding"),
    Case((6, 8), (4, 4), 2, False, "holes"),
    Case((5, 4), (7, 7), 1, True, "padding"),
    Case((3, 5, 4), (2, 2, 2), 0, True, "none"),
    Case((3, 5, 4), (2, 3, 2), 1, True, "padding"),
    Case((2, 4, 5), (2, 2, 2), 2, False, "holes"),
]


def build(case: Case, **options: Any) -> LaplacianAttention:
    """A float64 layer in which nothing is at its initial value."""
    torch.manual_seed(0)
    options = {"axes": len(case.size), "grid": case.grid, "prefix": case.prefix, "rope": case.rope, **options}
    layer = LaplacianAttention(DIM, HEADS, iterations=40, **options).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter += 0.3 * torch.rand_like(parameter) if name != "qkv.weight" else 0.2 * torch.randn_like(parameter)
        for name, buffer in layer.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(0.01 + 0.05 * torch.rand_like(buffer))
    return layer


def boxes(size: tuple[int, ...], batch: int) -> Tensor:
    """The first item is whole, the last has nothing, those between have boxes that shrink."""
    mask = torch.zeros(batch, *size, dtype=torch.bool)
    for item in range(batch - 1):
        mask[(item, *(slice(max(1, length - 2 * item)) for length in size))] = True
    return mask.flatten(1)


def mask_of(case: Case, batch: int = 4) -> Tensor:
    if case.mask == "none":
        return torch.ones(batch, case.prefix + boxes(case.size, 1).shape[1], dtype=torch.bool)
    mask = boxes(case.size, batch)
    if case.mask == "holes":
        mask &= torch.rand(mask.shape, generator=torch.Generator().manual_seed(3)) < 0.6
    before = mask.any(1, keepdim=True).repeat(1, case.prefix)
    if case.mask == "holes" and case.prefix:
        before[0, 0] = False
    return torch.cat([before, mask], dim=1)


def tokens(mask: Tensor) -> Tensor:
    return torch.randn(*mask.shape, DIM, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_are_those_of_the_definition(case: Case, training: bool) -> None:
    layer, mask = build(case).train(training), mask_of(case)
    x = tokens(mask).requires_grad_()
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    out = layer(x, case.size, None if case.mask == "none" else mask)

    mine = {name: state[name].requires_grad_() for name, _ in layer.named_parameters()}
    other = x.detach().clone().requires_grad_()
    options = {"grid": case.grid, "prefix": case.prefix, "rope": case.rope, "training": training}
    expected = evaluate(other, case.size, mask, state, heads=HEADS, **options)
    torch.testing.assert_close(out, expected, rtol=1e-8, atol=1e-10)

    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    found = torch.autograd.grad((out * weights).sum(), [x, *layer.parameters()])
    wanted = torch.autograd.grad((expected * weights).sum(), [other, *mine.values()])
    for name, one, two in zip(["x", *mine], found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")
