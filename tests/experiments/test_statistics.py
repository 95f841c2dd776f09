import math

import pytest

from laplacianformer.experiments.statistics import paired, summary


def test_summary_is_mean_and_sample_deviation() -> None:
    assert summary([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    assert math.isnan(summary([5.0]).deviation)
    assert str(summary([1.0, 3.0])) == "2.00 ± 1.41"


def test_a_paired_difference_sees_through_what_pairs_share() -> None:
    """Seeds differ by 10, methods by 1: unpaired noise would hide it."""
    difference = paired([11.0, 21.1, 30.9], [10.0, 20.0, 30.0])
    assert difference.clear
    assert difference.mean == pytest.approx(1.0)
    # Student's t with 2 degrees of freedom times the standard error of 1.0, 1.1, 0.9.
    assert difference.margin == pytest.approx(4.30 * 0.1 / math.sqrt(3))


def test_differences_inside_the_noise_are_not_clear() -> None:
    assert not paired([1.0, -1.0, 0.5], [0.0, 0.0, 0.0]).clear
    assert not paired([9.0], [0.0]).clear  # one pair says nothing


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])
