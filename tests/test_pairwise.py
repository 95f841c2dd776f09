import math
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pairwise import cover, pairwise

SIZES = st.lists(st.integers(1, 7), min_size=2, max_size=5)


def pairs(rows):
    return {(i, j, row[i], row[j]) for row in rows for i, j in combinations(range(len(row)), 2)}


@settings(deadline=None, derandomize=True, max_examples=100)
@given(SIZES)
def test_every_pair_occurs_and_no_row_twice(sizes):
    full = list(product(*map(range, sizes)))
    rows = cover(sizes)
    assert pairs(rows) == pairs(full)
    assert set(rows) <= set(full)
    assert len(rows) == len(set(rows)) <= len(full)
    assert rows == cover(sizes)


@pytest.mark.parametrize(
    ("sizes", "at_most"),
    [((6, 3, 2, 4, 3), 30), ((15, 4, 3), 60), ((13, 4, 2), 52), ((2, 2, 2, 2, 2), 7), ((4, 4, 4), 20), ((9, 9), 81)],
)
def test_the_cover_is_near_the_least_that_can_be(sizes, at_most):
    """No cover has fewer rows than the two longest parameters have pairs; the full products have up to 432."""
    least = math.prod(sorted(sizes)[-2:])
    assert least <= len(cover(sizes)) <= at_most


def cases(mark):
    return {case.id: case.values for case in mark.args[1]}


def test_cases_have_names_and_values():
    mark = pairwise({"size": [1, 2], "how": {"long name": object, "short": None}}, indirect=["size"])
    assert mark.args[0] == ["size", "how"]
    assert mark.kwargs["indirect"] == ["size"]
    assert cases(mark) == {
        "1-long name": (1, object),
        "1-short": (1, None),
        "2-long name": (2, object),
        "2-short": (2, None),
    }


def test_a_parameter_may_stand_for_several_arguments():
    mark = pairwise({"n, m": [(1, 2), (3, 4)], "d": [5]})
    assert mark.args[0] == ["n", "m", "d"]
    assert cases(mark) == {"(1, 2)-5": (1, 2, 5), "(3, 4)-5": (3, 4, 5)}
    with pytest.raises(AssertionError, match="given for the arguments"):
        pairwise({"n, m": [(1, 2, 3)], "d": [5]})


def test_extra_cases_are_added_once():
    parameters = {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1, 2]}
    left_out = [row for row in product(range(3), repeat=3) if row not in cases(pairwise(parameters)).values()]
    found = cases(
        pairwise(parameters, also=[dict(zip("abc", row, strict=True)) for row in product(range(3), repeat=3)])
    )
    assert left_out
    assert sorted(found.values()) == list(product(range(3), repeat=3))


def test_an_extra_case_without_every_parameter_is_refused():
    with pytest.raises(AssertionError, match="given for the parameters"):
        pairwise({"a": [1], "b": [2]}, also=[{"a": 1}])


def test_two_values_of_one_name_are_refused():
    with pytest.raises(AssertionError, match="one name"):
        pairwise({"a": [1, "1"], "b": [2]})
