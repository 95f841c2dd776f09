from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule import slow_first

# An item is (file, number, whether it is slow).
ITEMS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 999), st.booleans()), max_size=40, unique=True)


def is_slow(item):
    return item[2]


def file_of(item):
    return item[0]


def chunks(items, workers):
    """As pytest-xdist hands them out."""
    for index in range(workers):
        length = len(items) // (workers - index)
        yield items[:length]
        items = items[length:]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(ITEMS, st.integers(1, 5))
def test_every_item_is_kept_once_and_the_slow_ones_of_a_file_stay_together(items, workers):
    ordered = slow_first(items, workers, is_slow, file_of)
    assert sorted(ordered) == sorted(items)
    order = [file_of(item) for item in ordered if is_slow(item)]
    assert sum(a != b for a, b in pairwise(order)) == max(len(set(order)) - 1, 0)


def test_each_process_begins_with_its_part_of_the_slow_tests():
    items = [(file, number, number < 2) for file in "abcd" for number in range(10)]
    for chunk in chunks(slow_first(items, 2, is_slow, file_of), 2):
        assert len(chunk) == 20
        assert [is_slow(item) for item in chunk] == [True] * 4 + [False] * 16


def test_one_process_runs_the_slow_tests_first_and_keeps_the_order_otherwise():
    items = [("a", 0, False), ("b", 1, True), ("b", 2, False), ("c", 3, True)]
    assert [item[1] for item in slow_first(items, 1, is_slow, file_of)] == [1, 3, 0, 2]
