"""The paper's propositions on the feature map z: injective where its assumptions hold, and where they don't, not.

The proof assumes of the kernel features g(q) = [k(q, km_1) ... k(q, km_m)]:
  1. richness: distinct queries have distinct g;
  2. no constant-vector degeneracy: g(q) - g(p) is never a multiple of (1, ..., 1), which centring would remove.
Both hold for landmarks in general position around the queries, with more landmarks than channels.
"""

import math

import pytest
import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer.attention import AblationAttention, LaplacianAttention
from laplacianformer.attention._factors import Decomposition

WIDTH, LANDMARKS = 4, 25


def general_position(seed: int = 0, count: int = LANDMARKS) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(count, WIDTH, generator=generator, dtype=torch.float64)


def z(queries: Tensor, landmarks: Tensor, whitening: str | None = "instance") -> Tensor:
    """The layer's own map, for given queries and landmarks: (N, m)."""
    layer = AblationAttention(WIDTH, 1, grid=None, whitening=whitening, rope=False).double()
    c = ops.laplacian_kernel(queries, landmarks, 4.0)[None, None]
    variance, factor = layer.whiten_by(c, (1, landmarks.shape[0]))
    found = Decomposition(c, lambda: c, variance, factor, lambda v: v, full=whitening == "full")
    return found.injective_map(layer.gain)[0, 0]


def collisions(features: Tensor, tolerance: float) -> int:
    """Pairs of rows that are equal up to a relative tolerance."""
    distance = (features[:, None] - features[None]).abs().amax(-1) / features.abs().max()
    return int((distance <= tolerance).sum() - features.shape[0]) // 2


def query_sets() -> dict[str, Tensor]:
    base = 2 * torch.rand(30, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1
    step = 1e-9 * torch.eye(WIDTH, dtype=torch.float64)
    permutations = torch.tensor([[0, 1, 2, 3], [1, 0, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1], [0, 2, 1, 3], [1, 2, 3, 0]])
    return {
        "random": base,
        "tiny differences": torch.cat([base, *(base + e for e in step), *(base - e for e in step)]),
        "scaled copies": torch.cat([base * s for s in (-2.0, -1.0, 0.5, 1.0, 1.5, 3.0)]),
        "permuted coordinates": torch.cat([base[:, order] for order in permutations]),
        "on the landmarks": torch.cat([base, general_position()]),
        "on a lattice": torch.cartesian_prod(*[torch.arange(-1.0, 2.0, dtype=torch.float64)] * WIDTH),
    }


@pytest.mark.parametrize("whitening", ["running", "instance", "full", None])
@pytest.mark.parametrize("name", query_sets())
def test_distinct_queries_have_distinct_features(name: str, whitening: str | None) -> None:
    assert collisions(z(query_sets()[name], general_position(), whitening), tolerance=1e-13) == 0


@pytest.mark.parametrize("name", query_sets())
def test_duplicated_landmarks_do_no_harm(name: str) -> None:
    landmarks = general_position()
    doubled = torch.cat([landmarks, landmarks[:10], landmarks[:1].expand(5, WIDTH)])
    assert collisions(z(query_sets()[name], doubled), tolerance=1e-13) == 0


def test_the_count_sees_equal_queries() -> None:
    queries = general_position(seed=1)
    assert collisions(z(torch.cat([queries, queries]), general_position()), tolerance=1e-13) == LANDMARKS


@pytest.mark.parametrize("count", [1, 6])
def test_landmarks_that_are_all_equal_degenerate(count: int) -> None:
    """Assumption 2 fails: g(q) is a constant vector, centring removes it, and every query gets z = 1/m."""
    landmarks = general_position(count=1).expand(count, WIDTH)
    features = z(query_sets()["random"], landmarks)
    torch.testing.assert_close(features, torch.full_like(features, 1 / count))


def test_landmarks_on_one_side_degenerate() -> None:
    """Assumption 1 fails: above all landmarks |q - km|_1 knows the sum of the coordinates only."""
    landmarks = -general_position().abs()
    queries = torch.tensor([[1.0, 2, 3, 4], [4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5], [1, 2, 3, 5]], dtype=torch.float64)
    assert collisions(z(queries, landmarks), tolerance=1e-13) == 3


def linear_attention_map(queries: Tensor, keys: Tensor, feature: str) -> Tensor:
    """Attention weights phi(q)'phi(k) / sum: what a plain linear attention knows of a query."""
    phi = {"relu": torch.relu, "elu + 1": lambda x: torch.nn.functional.elu(x) + 1}[feature]
    weights = phi(queries) @ phi(keys).mT
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("feature", ["relu", "elu + 1"])
def test_plain_linear_attention_is_not_injective(feature: str) -> None:
    """Queries whose features are collinear collide: q and 2 q for relu, q and 2 (q + 1) - 1 for elu + 1."""
    queries = general_position(seed=2, count=10).abs() + 0.1
    collinear = 2 * queries if feature == "relu" else 2 * (queries + 1) - 1
    both, keys = torch.cat([queries, collinear]), general_position()
    assert collisions(linear_attention_map(both, keys, feature), tolerance=1e-13) == 10
    assert collisions(z(both, keys), tolerance=1e-13) == 0


def test_the_whole_layer_tells_collinear_queries_apart() -> None:
    """Tokens x and 2 x without biases: their queries are collinear, their rows of Z are not equal."""
    torch.manual_seed(0)
    layer = LaplacianAttention(16, 2, grid=3, rope=False, qkv_bias=False).double()
    x = torch.randn(1, 36, 16, dtype=torch.float64)
    x[0, 1::2] = 2 * x[0, ::2]
    for head in layer.factors(x, (6, 6)).z[0]:
        assert collisions(head, tolerance=1e-6) == 0


@pytest.mark.parametrize("width", [4, 32])
def test_gradient_near_equal_points_is_sqrt_d_over_scale_and_vanishes_for_the_gaussian(width: int) -> None:
    y = torch.zeros(1, width, dtype=torch.float64)
    for distance in (1e-3, 1e-6, 1e-9):
        x = torch.full_like(y, distance).requires_grad_()
        (laplacian,) = torch.autograd.grad(ops.laplacian_kernel(x, y, 4.0).sum(), x)
        (gaussian,) = torch.autograd.grad(ops.gaussian_kernel(x, y, 4.0).sum(), x)
        assert laplacian.norm().item() == pytest.approx(math.sqrt(width) / 4, rel=0.01)
        assert gaussian.norm().item() == pytest.approx(math.sqrt(width) * distance / 16, rel=0.01)
