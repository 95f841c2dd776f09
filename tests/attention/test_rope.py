"""Rotary positions on two axes: lengths kept, inner products by offset alone, landmarks at their centres."""

import pytest
import torch

from laplacianformer.attention._rope import rotate
from laplacianformer.ops.laplacian_attention import reference
from laplacianformer.ops.laplacian_attention.settings import Settings

from .oracle import build, tokens


def places(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("width", [4, 8, 32])
def test_every_pair_of_channels_keeps_its_length(width: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 35, width, dtype=dtype)
    turned = rotate(x, torch.arange(5.0), torch.arange(7.0))
    assert turned.dtype == dtype
    half = width // 2
    torch.testing.assert_close(
        turned[..., :half] ** 2 + turned[..., half:] ** 2, x[..., :half] ** 2 + x[..., half:] ** 2
    )
    assert not torch.allclose(turned, x)


def test_position_zero_is_the_identity() -> None:
    x = torch.randn(1, 8)
    assert torch.equal(rotate(x, torch.zeros(1), torch.zeros(1)), x)


@pytest.mark.parametrize("shift", [(3.0, 0.0), (0.0, 2.5), (-7.0, 11.0), (40.0, 40.0)], ids=str)
def test_inner_products_depend_on_the_offset_only(shift: tuple[float, float]) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 16, dtype=torch.float64)

    def score(query: tuple[float, float], key: tuple[float, float]) -> float:
        return (rotate(q, *map(places, query)) * rotate(k, *map(places, key))).sum().item()

    query, key = (2.0, 5.0), (9.0, 1.0)
    moved = [(point[0] + shift[0], point[1] + shift[1]) for point in (query, key)]
    assert score(*moved) == pytest.approx(score(query, key), rel=1e-10)
    for one_moved in ((moved[0], key), (query, moved[1])):
        assert abs(score(*one_moved) - score(query, key)) > 1e-3


@pytest.mark.parametrize(("axis", "still"), [(0, [1, 3]), (1, [0, 2])], ids=["row", "column"])
def test_each_axis_turns_its_own_half_of_the_channels(axis: int, still: list[int]) -> None:
    x = torch.randn(1, 16)
    place = [torch.zeros(1), torch.zeros(1)]
    place[axis] = torch.ones(1)
    turned = rotate(x, *place)
    for quarter, (a, b) in enumerate(zip(turned.chunk(4, -1), x.chunk(4, -1), strict=True)):
        assert torch.equal(a, b) == (quarter in still)


def test_a_grid_is_its_tokens_one_by_one_in_row_major_order() -> None:
    x = torch.randn(3, 6, 8, dtype=torch.float64)
    rows, columns = places(0, 5), places(1, 2, 7)
    turned = rotate(x, rows, columns)
    for n in range(6):
        one = rotate(x[:, n : n + 1], rows[n // 3 : n // 3 + 1], columns[n % 3 : n % 3 + 1])
        torch.testing.assert_close(turned[:, n : n + 1], one)


def test_float64_angles_are_right_to_float64() -> None:
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    turned = rotate(x, torch.tensor([1000.0]), torch.zeros(1))
    expected = torch.tensor(1000.0, dtype=torch.float64)
    torch.testing.assert_close(turned[0, [0, 2]], torch.stack([expected.cos(), expected.sin()]), rtol=1e-12, atol=0)


def test_landmarks_are_averaged_before_they_are_rotated() -> None:
    """With equal keys everywhere, a landmark is that key at its cell's centre, at full length."""
    layer = build(grid=2)
    key = torch.randn(1, 2, 1, 8, dtype=torch.float64)
    equal = key.expand(1, 2, 60, 8)
    expected = rotate(key.expand(1, 2, 4, 8), places(1, 4), places(2, 7))
    torch.testing.assert_close(layer.landmarks(equal, (6, 10)), expected)
    placed = reference.kernel_inputs(equal, equal, Settings(**layer.settings(equal, (6, 10))))
    torch.testing.assert_close(placed.km, expected)


def test_without_rope_the_layer_does_not_know_places() -> None:
    """Same rearrangement of all tokens within their cells: the global branch moves along; with rope it does not."""
    size, x = (4, 4), tokens((4, 4))
    order = torch.arange(16).view(4, 4)[[1, 0, 3, 2]][:, [1, 0, 3, 2]].flatten()
    for rope in (False, True):
        layer = build(grid=2, rope=rope).eval()
        z, moved = layer.factors(x, size).z, layer.factors(x[:, order], size).z
        assert torch.allclose(moved, z[:, :, order]) != rope
