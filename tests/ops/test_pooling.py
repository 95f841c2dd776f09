"""Landmarks are adaptive average pooling, and stand at the mean place of their tokens."""

import pytest
import torch
from torch.nn import functional as F

from laplacianformer.ops._pooling import averaging_matrix, cell_centres, pool

CPU = torch.device("cpu")


@pytest.mark.parametrize("cells", [(1, 1), (2, 3), (7, 7), (5, 9)], ids=str)
@pytest.mark.parametrize("size", [(9, 9), (10, 13), (14, 28), (31, 9), (17, 64)], ids=str)
def test_pool_equals_adaptive_average_pooling(size: tuple[int, int], cells: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = F.adaptive_avg_pool2d(x, cells).flatten(2).mT
    torch.testing.assert_close(pool(x.flatten(2).mT, size, cells), expected, rtol=1e-12, atol=1e-12)


def test_averaging_equals_adaptive_pooling_for_all_small_lengths() -> None:
    for length in range(1, 40):
        signal = torch.randn(1, length, dtype=torch.float64)
        for cells in range(1, length + 1):
            expected = F.adaptive_avg_pool1d(signal[None], cells)[0]
            found = signal @ averaging_matrix(length, cells, CPU, signal.dtype).mT
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, msg=f"{length} -> {cells}")


def test_centres_are_the_mean_place_of_the_tokens_of_a_cell() -> None:
    for length in range(1, 40):
        places = torch.arange(length, dtype=torch.float32)[None, None]
        for cells in range(1, length + 1):
            expected = F.adaptive_avg_pool1d(places, cells)[0, 0]
            torch.testing.assert_close(cell_centres(length, cells, CPU), expected)


def test_as_many_cells_as_tokens_is_the_identity() -> None:
    x = torch.randn(2, 15, 4)
    assert torch.equal(pool(x, (5, 3), (5, 3)), x)
    assert torch.equal(cell_centres(15, 15, CPU), torch.arange(15.0))


def test_pool_takes_slices_of_a_projection() -> None:
    whole = torch.randn(2, 20, 12, dtype=torch.float64)
    part = whole[..., 4:8]
    torch.testing.assert_close(pool(part, (5, 4), (2, 3)), pool(part.contiguous(), (5, 4), (2, 3)))
