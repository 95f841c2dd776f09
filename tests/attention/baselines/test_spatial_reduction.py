"""PVT's spatial-reduction attention: the formula, and what the slot adds to it."""

from typing import Any

import pytest
import timm
import torch
from torch.nn import functional as F

from laplacianformer.attention import SpatialReductionAttention

from .. import oracle
from ..oracle import tokens
from .baselines import build

RATIO = 3


@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("size", [(6, 9), (7, 4), (2, 2)], ids=str)
def test_output_is_the_formula(size: tuple[int, int], rope: bool) -> None:
    """Cell by cell: a linear map of the tokens of each, with zeros beyond the grid."""
    layer, x = build("spatial-reduction", ratio=RATIO, rope=rope), tokens(size)
    project = [part.unflatten(-1, (2, 8)).transpose(1, 2) for part in layer.qkv(x).split(16, dim=-1)]
    grid = x.unflatten(1, size)
    reduced, centres = [], []
    for top in range(0, size[0], RATIO):
        for left in range(0, size[1], RATIO):
            cell = grid[:, top : top + RATIO, left : left + RATIO]
            weight = layer.reduction.weight[:, :, : cell.shape[1], : cell.shape[2]]
            reduced.append(torch.einsum("bhwc,ochw->bo", cell, weight) + layer.reduction.bias)
            centres.append((top + 1.0, left + 1.0))
    norm = layer.reduction_norm
    points = F.layer_norm(torch.stack(reduced, 1), (16,), norm.weight, norm.bias)
    k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in layer.qkv(points).split(16, dim=-1)[1:])
    q = project[0]
    if rope:
        q = oracle.rotate(q, *oracle.coordinates(size)[0, 0].T)
        k = oracle.rotate(k, *torch.tensor(centres, dtype=torch.float64).T)
    weights = (q @ k.mT / 8**0.5).exp()
    mixed = (weights / weights.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2)
    images = project[2].transpose(1, 2).flatten(2).mT.unflatten(2, size)
    local = F.conv2d(images, layer.dwc.weight, layer.dwc.bias, padding=1, groups=16).flatten(2).mT
    torch.testing.assert_close(layer(x, size), layer.proj(mixed + local), rtol=1e-10, atol=1e-10)


def test_a_ratio_of_one_is_softmax_attention() -> None:
    softmax, layer = build("softmax"), build("spatial-reduction")
    layer.load_state_dict({**softmax.state_dict(), "_extra_state": layer.state_dict()["_extra_state"]})
    x = tokens((5, 4))
    torch.testing.assert_close(layer(x, (5, 4)), softmax(x, (5, 4)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_padding_changes_nothing(axes: int) -> None:
    """On every axis count, with leading tokens; the padding ends within a cell."""
    layer = build("spatial-reduction", ratio=2, axes=axes, prefix=1, rope=axes < 3).eval()
    size, larger = (3, 4, 5)[:axes], (6, 5, 8)[:axes]
    torch.manual_seed(0)
    alone = torch.randn(1, *size, 16, dtype=torch.float64)
    padded = torch.full((1, *larger, 16), 7.0, dtype=torch.float64)
    mask = torch.zeros(1, *larger, dtype=torch.bool)
    inside = (slice(None), *(slice(length) for length in size))
    padded[inside], mask[inside] = alone, True
    first = torch.randn(1, 1, 16, dtype=torch.float64)
    wanted = layer(torch.cat([first, alone.flatten(1, -2)], 1), size)
    there = torch.cat([torch.ones(1, 1, dtype=torch.bool), mask.flatten(1)], 1)
    found = layer(torch.cat([first, padded.flatten(1, -2)], 1), larger, there)
    torch.testing.assert_close(found[there][None], wanted, rtol=1e-10, atol=1e-10)
    assert not found[~there].any()


def test_gradients_equal_finite_differences() -> None:
    layer, x = build("spatial-reduction", dim=8, ratio=2), tokens((3, 4), dim=8).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, (3, 4)), (x, *layer.parameters()), fast_mode=True)


def test_one_number_of_keys_in_all_stages() -> None:
    """The ratios of the paper, by the widths of a model: 7 x 7 keys at 224 pixels."""
    arguments = {"ratio": {"64": 8, "128": 4, "320": 2, "512": 1}}
    with torch.device("meta"):
        model = timm.create_model(
            "laplacianformer_tiny", attention="spatial-reduction", attention_args=arguments, depths=(1, 1, 1, 1)
        )
        for stage, length in zip(model.stages, (56, 28, 14, 7), strict=True):
            layer: Any = stage.blocks[0].attention
            _, k, v = layer.project(torch.empty(1, length**2, layer.dim), (length, length))
            assert k.shape == v.shape == (1, layer.num_heads, 49, 32)


@pytest.mark.parametrize(
    ("ratio", "error", "message"),
    [
        (0, ValueError, "SpatialReductionAttention: ratio must be at least 1, got 0"),
        (2.0, TypeError, "ratio must be an integer, got float"),
        ({32: 2}, ValueError, r"ratio must have a number for width 16, got \{32: 2\}"),
    ],
)
def test_bad_ratios_are_refused(ratio: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        SpatialReductionAttention(16, 2, ratio=ratio)


def test_weights_of_another_ratio_are_refused() -> None:
    with pytest.raises(RuntimeError, match="ratio=1 instead of 2"):
        build("spatial-reduction", ratio=2).load_state_dict(build("spatial-reduction").state_dict(), strict=False)
