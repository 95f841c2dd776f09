"""Linear, cosFormer, Performer, Hedgehog and InLine attention: the formulas, and what defines each."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer.attention import ATTENTIONS
from laplacianformer.attention.baselines._feature_maps import FeatureMapAttention
from laplacianformer.attention.baselines.performer import _draw_orthogonal

from ..oracle import tokens
from .baselines import build, matrix, points, row_normalised

SIZE = (5, 6)
N = 30


def linear(layer: Any, q: Tensor, k: Tensor) -> Tensor:
    return row_normalised((F.elu(q) + 1) @ (F.elu(k) + 1).mT)


def cosformer(layer: Any, q: Tensor, k: Tensor) -> Tensor:
    position = torch.arange(N, dtype=torch.float64)
    return row_normalised(q.relu() @ k.relu().mT * torch.cos(math.pi / 2 * (position[:, None] - position) / N))


def performer(layer: Any, q: Tensor, k: Tensor) -> Tensor:
    """Feature by feature, with what the authors add to features of at most 1."""
    total = torch.zeros(*q.shape[:2], N, N, dtype=q.dtype)
    q, k = q / q.shape[-1] ** 0.25, k / k.shape[-1] ** 0.25
    products = [[x @ omega[..., None] for x in (q, k)] for omega in layer.omega.unbind(1)]
    by_query, by_key = (torch.cat(parts, dim=-1) for parts in zip(*products, strict=True))
    largest = by_query.amax(-1, keepdim=True), by_key.amax((-2, -1), keepdim=True)
    for both in products:
        one, other = (
            (product - most - x.square().sum(-1, keepdim=True) / 2).exp() + 1e-4
            for product, most, x in zip(both, largest, (q, k), strict=True)
        )
        total += one @ other.mT
    return row_normalised(total)


def hedgehog(layer: Any, q: Tensor, k: Tensor) -> Tensor:
    sides = []
    for sign in (1, -1):
        by_query = (sign * torch.einsum("hij,bhnj->bhni", layer.query_map, q)).exp()
        by_key = (sign * torch.einsum("hij,bhnj->bhni", layer.key_map, k)).exp()
        sides.append(row_normalised(by_query) @ row_normalised(by_key).mT)
    return row_normalised(sides[0] + sides[1])


def inline(layer: Any, q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.mT / (math.sqrt(q.shape[-1]) * N)
    return scores - scores.mean(-1, keepdim=True) + 1 / N


ORACLES = {"linear": linear, "cosformer": cosformer, "performer": performer, "hedgehog": hedgehog, "inline": inline}


@pytest.mark.parametrize("rope", [True, False], ids=["rope", "no rope"])
@pytest.mark.parametrize("name", ORACLES)
def test_the_matrix_is_that_of_the_formula(name: str, rope: bool) -> None:
    """Formed in full; its rows sum to one, and no weight is negative where features are not."""
    layer, x = build(name, dim=64, rope=rope), 2 * tokens(SIZE, dim=64)  # wide: no query of cosFormer's is all negative
    given = points(layer, x, SIZE)
    found = matrix(layer, x, SIZE)
    torch.testing.assert_close(found, ORACLES[name](layer, given.q, given.k), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.sum(-1), torch.ones_like(found[..., 0]))
    if isinstance(layer, FeatureMapAttention):
        assert (found > 0 if name != "cosformer" else found >= 0).all()
    else:
        assert (found < 0).any()


@pytest.mark.parametrize("name", ORACLES)
def test_without_positions_only_cosformer_knows_the_order_of_the_tokens(name: str) -> None:
    layer, x = build(name, rope=False), tokens(SIZE)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    found, moved = matrix(layer, x, SIZE), matrix(layer, x[:, order], SIZE)
    assert torch.allclose(moved, found[..., order, :][..., order]) == (name != "cosformer")


def test_cosformer_takes_positions_in_row_major_order() -> None:
    """For equal tokens, weights fall with the distance in the row-major order: the right neighbour before the lower."""
    layer, size = build("cosformer", rope=False), (4, 5)
    found = matrix(layer, tokens(size)[:, :1].expand(-1, 20, -1), size)[0, 0]
    assert found[6, 7] > found[6, 11]
    assert (found[0].diff() < 0).all()
    torch.testing.assert_close(found[6] / found[6, 6], torch.cos(math.pi / 40 * (torch.arange(20).double() - 6)))


def mapped(name: str, q: Tensor, k: Tensor) -> Tensor:
    """Weights (queries, keys) of a layer of one head without positions."""
    layer = ATTENTIONS[name](q.shape[-1], 1, rope=False).double()
    identity = torch.eye(k.shape[0], dtype=torch.float64)
    return layer.mix(q[None, None], k[None, None], identity[None, None], (1, k.shape[0]))[0, 0].detach()


def largest_gap(name: str, q: Tensor, p: Tensor, k: Tensor) -> float:
    return (mapped(name, q, k) - mapped(name, p, k)).abs().max().item()


def test_inline_is_injective_where_linear_attention_is_not() -> None:
    """Scaled queries, and for elu + 1 those with scaled features: q > 0 and 2 q + 1."""
    torch.manual_seed(0)
    q, k = torch.rand(N, 4, dtype=torch.float64), torch.randn(N, 4, dtype=torch.float64)
    assert largest_gap("linear", q, 2 * q + 1, k) < 1e-14
    assert largest_gap("cosformer", q, 2 * q, k) < 1e-14
    for p in (2 * q, 2 * q + 1, q + 1e-6):
        gaps = (mapped("inline", q, k) - mapped("inline", p, k)).abs().amax(-1)
        assert (gaps > 1e-9).all()
    # Among themselves, scaled copies and permuted coordinates included, no two rows are equal.
    many = torch.cat([q[:5], 3 * q[:5], -q[:5], q[:5, [1, 0, 2, 3]], q[:5].flip(-1), q[:5] + 1e-6])
    rows = mapped("inline", many, k)
    distance = (rows[:, None] - rows[None]).abs().amax(-1) + torch.eye(N, dtype=torch.float64)
    assert distance.min() > 1e-9


def test_inline_needs_keys_that_differ_in_every_channel() -> None:
    """The assumption of its proof: with keys that share a channel, queries that differ in it alone collide."""
    torch.manual_seed(0)
    q, k = torch.randn(2, N, 4, dtype=torch.float64)
    k[:, 3] = 1.0
    other = q + torch.tensor([0.0, 0.0, 0.0, 5.0], dtype=torch.float64)
    assert largest_gap("inline", q, other, k) < 1e-14
    assert largest_gap("inline", q, other.flip(-1), k) > 1e-3


def test_performer_is_unbiased_and_orthogonal_rows_lower_its_variance() -> None:
    """phi(q)'phi(k) over 20,000 draws against exp(q'k / sqrt(d)), within 4 standard errors."""
    torch.manual_seed(0)
    width, draws = 4, 20_000
    q, k = torch.randn(2, width, dtype=torch.float64)

    def estimates(omega: Tensor) -> Tensor:
        x, y = q / width**0.25, k / width**0.25
        exponents = omega @ (x + y) - (x.square().sum() + y.square().sum()) / 2
        return exponents.exp().mean(-1)

    exact = (q @ k / width**0.5).exp()
    orthogonal = estimates(_draw_orthogonal(draws, width, width, seed=0).double())
    independent = estimates(torch.randn(draws, width, width, dtype=torch.float64))
    for found in (orthogonal, independent):
        assert abs(found.mean() - exact) < 4 * found.std() / draws**0.5
    assert orthogonal.var() < 0.9 * independent.var()


def test_rows_of_the_draw_are_normal_and_orthogonal_within_blocks() -> None:
    omega = _draw_orthogonal(200, 20, 8, seed=1)
    assert omega.shape == (200, 20, 8)
    for block in omega.split(8, dim=1):
        products = block @ block.mT
        products = products - torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))
        assert products.abs().max() < 1e-4
    second = torch.einsum("hfd,hfe->de", omega, omega) / 4000
    assert (second - torch.eye(8)).abs().max() < 0.12
    assert (omega**4).mean() == pytest.approx(3, rel=0.05)


def test_performer_approaches_softmax_as_features_grow() -> None:
    """For queries and keys that are not long: the variance of the estimate grows with exp(|q + k|^2)."""
    x = 0.5 * tokens(SIZE)
    wanted = matrix(build("softmax"), x, SIZE)
    few, many = (
        (matrix(build("performer", features=count), x, SIZE) - wanted).square().mean().sqrt() for count in (16, 4096)
    )
    assert many < few / 6
    assert many < 0.02 * wanted.square().mean().sqrt()


def test_every_layer_has_a_draw_of_its_own_which_is_kept_in_the_state() -> None:
    """The same draws from the same seed of torch, whose generator they leave as it is; or one given seed for all."""
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append([ATTENTIONS["performer"](16, 2).omega for _ in range(3)])
        after = torch.rand(())
    torch.manual_seed(5)
    for _ in range(3):
        ATTENTIONS["performer"](16, 2, seed=1)
    assert torch.rand(()) == after
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
    assert not any(torch.equal(drawn[0][i], drawn[0][j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    first, other = (ATTENTIONS["performer"](16, 2, seed=seed) for seed in (0, 1))
    assert torch.equal(first.omega, ATTENTIONS["performer"](16, 2, seed=0).omega)
    assert not torch.equal(first.omega, other.omega)
    other.load_state_dict(first.state_dict())
    assert torch.equal(first(tokens(SIZE).float(), SIZE), other(tokens(SIZE).float(), SIZE))


def test_hedgehog_features_are_two_distributions_per_token() -> None:
    layer, x = build("hedgehog"), 5 * tokens(SIZE)
    q, k, _ = layer.project(x, SIZE)
    for features in layer.features(q, k, SIZE, None):
        assert (features > 0).all()
        for half in features.chunk(2, dim=-1):
            torch.testing.assert_close(half.sum(-1), torch.ones_like(half[..., 0]))
    fresh = ATTENTIONS["hedgehog"](16, 2)
    assert torch.equal(fresh.query_map, torch.eye(8).expand(2, 8, 8))
    assert torch.equal(fresh.key_map, torch.eye(8).expand(2, 8, 8))


def test_a_query_without_a_positive_channel_gets_zeros() -> None:
    q = torch.randn(1, 1, N, 8, dtype=torch.float64)
    q[:, :, 3] = -1.0
    layer = ATTENTIONS["cosformer"](8, 1, rope=False).double()
    out = layer.mix(q, q, torch.randn_like(q), SIZE)
    assert out[:, :, 3].abs().max() == 0
    assert out[:, :, 4].abs().max() > 0


def test_far_negative_channels_still_have_features() -> None:
    """elu(x) + 1 in float32 is exactly 0 below -17, and 0 / 0 with it."""
    x = torch.full((1, 1, N, 8), -20.0)
    layer = ATTENTIONS["linear"](8, 1, rope=False)
    values = torch.randn_like(x)
    torch.testing.assert_close(layer.mix(x, -x, values, SIZE), values.mean(2, keepdim=True).expand_as(values))


def test_a_feature_map_must_be_defined() -> None:
    with pytest.raises(TypeError, match="FeatureMapAttention must define features"):
        FeatureMapAttention(8, 2)(tokens((2, 2), dim=8, dtype=torch.float32), (2, 2))
