"""The layer on a GPU, on every grid, with masks and leading tokens: the CPU's numbers, and what masks promise."""

import copy
import math

import pytest
import torch
from torch import Tensor

from laplacianformer import LaplacianAttention

DEVICE = "cuda"
DIM, HEADS, PREFIX = 64, 2, 2
SIZES = [(300,), (19, 17), (5, 9, 8)]
each_size = pytest.mark.parametrize("size", SIZES, ids=str)
each_mode = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


@pytest.fixture(autouse=True)
def full_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are compared: cuDNN's convolutions in float32, not in TF32 as by default."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def build(size: tuple[int, ...], training: bool) -> LaplacianAttention:
    torch.manual_seed(0)
    return LaplacianAttention(DIM, HEADS, axes=len(size), prefix=PREFIX).train(training)


def tokens_and_mask(size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """A whole item, one that is padded along every axis, and one without tokens."""
    mask = torch.zeros(3, *size, dtype=torch.bool)
    mask[0] = True
    mask[(1, *(slice(length - 3) for length in size))] = True
    before = mask.flatten(1).any(1, keepdim=True).expand(-1, PREFIX)
    return torch.randn(3, PREFIX + math.prod(size), DIM), torch.cat([before, mask.flatten(1)], dim=1)


def run(layer: LaplacianAttention, x: Tensor, size: tuple[int, ...], mask: Tensor | None, device: str) -> list[Tensor]:
    """The output, and the gradients of the tokens and the parameters."""
    layer, x = copy.deepcopy(layer).to(device), x.to(device).requires_grad_()
    out = layer(x, size, None if mask is None else mask.to(device))
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]


@each_mode
@each_size
@pytest.mark.parametrize("masked", [False, True])
def test_agrees_with_the_cpu(size: tuple[int, ...], training: bool, masked: bool) -> None:
    layer, (x, mask) = build(size, training), tokens_and_mask(size)
    found, wanted = (run(layer, x, size, mask if masked else None, device) for device in (DEVICE, "cpu"))
    for one, two in zip(found, wanted, strict=True):
        assert (one.cpu() - two).norm() <= 1e-3 * two.norm() + 1e-6


@each_mode
@each_size
def test_padding_reaches_nothing(size: tuple[int, ...], training: bool) -> None:
    """Not even NaN; an item without tokens gives zeros."""
    layer, (x, mask) = build(size, training), tokens_and_mask(size)
    dirty = x.masked_fill(~mask[..., None], math.nan)
    clean, found = (run(layer, each, size, mask, DEVICE) for each in (x, dirty))
    assert all(torch.equal(one, two) for one, two in zip(clean, found, strict=True))
    for each in found[:2]:
        assert not each.cpu()[~mask].any(), "outputs and gradients of padding are exact zeros"


@each_mode
@each_size
def test_a_mask_of_all_tokens_is_no_mask_bit_for_bit(size: tuple[int, ...], training: bool) -> None:
    layer, (x, mask) = build(size, training), tokens_and_mask(size)
    found, wanted = (run(layer, x, size, given, DEVICE) for given in (torch.ones_like(mask), None))
    assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
