"""The order in which several processes run the tests: what takes long begins first, so that none is left for the end.

pytest-xdist's `worksteal` hands each process one part of the list, all of the same length; a process that has nothing
left takes tests from the end of another part.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def slow_first(
    items: Iterable[Item], workers: int, is_slow: Callable[[Item], bool], file_of: Callable[[Item], object]
) -> list[Item]:
    """All items, so that each of `workers` equal parts begins with its part of the slow ones.

    The slow tests of a file stay together, as they may share a fixture that takes most of the time.
    """
    slow: dict[object, list[Item]] = {}
    quick: list[Item] = []
    for item in items:
        (slow.setdefault(file_of(item), []) if is_slow(item) else quick).append(item)
    parts: list[list[Item]] = [[] for _ in range(workers)]
    for index, together in enumerate(slow.values()):
        parts[index % workers].extend(together)
    total, ordered = len(quick) + sum(map(len, parts)), list[Item]()
    for index, part in enumerate(parts):
        length = (total - len(ordered)) // (workers - index)
        take = max(0, length - len(part))
        ordered += part + quick[:take]
        del quick[:take]
    return ordered + quick
