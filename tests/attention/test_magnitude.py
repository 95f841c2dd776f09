"""|L| stays of the order of |V| from 49 to 50,176 tokens, because of the factor m/N."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer.attention import AblationAttention, LaplacianAttention

SIDES = [7, 8, 14, 28, 56, 112, 224]
LOW, HIGH = 0.2, 5.0


def smooth_tokens(side: int) -> Tensor:
    """Normalised tokens of an image-like field: a common part, a part that varies over the image, and noise.

    Values that are independent from token to token would average away: L is a mean over a neighbourhood.
    """
    torch.manual_seed(0)
    field = F.interpolate(torch.randn(1, 64, 4, 4), (side, side), mode="bicubic", align_corners=True)
    field = field + torch.randn(1, 64, 1, 1) + 0.3 * torch.randn(1, 64, side, side)
    return F.layer_norm(field.flatten(2).mT, (64,))


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


@torch.no_grad()
def ratio_of_magnitudes(side: int, rope: bool) -> float:
    torch.manual_seed(0)
    layer = LaplacianAttention(64, 2, rope=rope).eval()
    x, size = smooth_tokens(side), (side, side)
    _, _, v = layer.project(x, size)
    return rms(layer.factors(x, size).landmark_values) / rms(v)


@pytest.mark.parametrize("rope", [True, False])
@pytest.mark.parametrize("side", SIDES)
def test_landmark_values_are_of_the_order_of_the_values(side: int, rope: bool) -> None:
    assert LOW < ratio_of_magnitudes(side, rope) < HIGH


def test_without_the_factor_they_would_not_be() -> None:
    """The bound can fail: L without m/N leaves it from 28 x 28 tokens on."""
    for side in (28, 56, 112, 224):
        assert ratio_of_magnitudes(side, rope=True) * side**2 / 49 > HIGH


@pytest.mark.parametrize("repeats", [2, 4, 8])
def test_repeating_every_token_leaves_the_landmark_values_as_they_are(repeats: int) -> None:
    """Sharp: where each cell holds one token many times, L is the value of that token whatever N is."""
    torch.manual_seed(0)
    layer = AblationAttention(16, 2, rope=False, solver="cholesky", eps=1e-9).double()
    image = torch.randn(1, 16, 7, 7, dtype=torch.float64)
    x = image.repeat_interleave(repeats, 2).repeat_interleave(repeats, 3).flatten(2).mT
    values = layer.factors(x, (7 * repeats, 7 * repeats)).landmark_values
    expected = layer.project(image.flatten(2).mT, (7, 7))[2]
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-6)
