"""Fewer cases than a full product: every pair of values of any two parameters still occurs in some case.

A fault that one value causes, or two values together, is found as surely as by the full product. Values that act
three at a time (a remainder after whole vectors depends on size, dtype and instruction set) belong in one parameter:
zip them into tuples first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Values = Sequence[Any] | Mapping[str, Any]  # a mapping names values that have no short name of their own


def cover(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows of indices, one index below `size` for each of `sizes`, in which every pair occurs; always the same rows.

    Greedy: each row begins with the first pair that is missing, and takes for every other parameter the index that
    adds most pairs; of equals, the one used least so far, then the smallest. The longest parameter is settled first.
    """
    rows: list[tuple[int, ...]] = []
    missing = {
        ((i, a), (j, b)): None
        for i, j in combinations(range(len(sizes)), 2)
        for a, b in product(range(sizes[i]), range(sizes[j]))
    }
    used = [Counter[int]() for _ in sizes]
    while missing:
        row = dict(next(iter(missing)))
        for i in sorted(set(range(len(sizes))) - set(row), key=lambda i: (-sizes[i], i)):

            def new_pairs(a: int, i: int = i, row: dict[int, int] = row) -> int:
                return sum(tuple(sorted([(i, a), other])) in missing for other in row.items())

            row[i] = min(range(sizes[i]), key=lambda a, i=i, new=new_pairs: (-new(a), used[i][a], a))
        for pair in combinations(sorted(row.items()), 2):
            missing.pop(pair, None)
        for i, a in row.items():
            used[i][a] += 1
        rows.append(tuple(row[i] for i in range(len(sizes))))
    return sorted(rows)


def pairwise(
    parameters: Mapping[str, Values], also: Iterable[Mapping[str, Any]] = (), indirect: Sequence[str] = ()
) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` over a pairwise cover of two parameters or more, by name.

    A parameter that stands for several arguments names them all ("n, m"), and its values are tuples. `also`: more
    cases that must not be left to the cover, each a value (or its name in a mapping) per parameter; one that the
    cover already has is not repeated. `indirect`: the arguments that are fixtures.
    """
    named = [
        values if isinstance(values, Mapping) else {label(value): value for value in values}
        for values in parameters.values()
    ]
    assert all(len(a) == len(b) for a, b in zip(named, parameters.values(), strict=True)), "two values with one name"
    keys = [list(values) for values in named]
    chosen = [tuple(keys[i][a] for i, a in enumerate(row)) for row in cover([len(values) for values in named])]
    for case in also:
        assert case.keys() == parameters.keys(), f"{sorted(case)} given for the parameters {sorted(parameters)}"
        chosen.append(tuple(label(case[name]) for name in parameters))
    arguments = [name.split(", ") for name in parameters]
    cases = []
    for row in dict.fromkeys(chosen):
        values = [named[i][key] for i, key in enumerate(row)]
        flat = [part for names, value in zip(arguments, values, strict=True) for part in parts(names, value)]
        cases.append(pytest.param(*flat, id="-".join(row)))
    return pytest.mark.parametrize([name for names in arguments for name in names], cases, indirect=list(indirect))


def parts(names: Sequence[str], value: Any) -> tuple[Any, ...]:
    if len(names) == 1:
        return (value,)
    assert len(names) == len(value), f"{value} given for the arguments {names}"
    return tuple(value)


def label(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(map(label, value)) + ")"
    return str(getattr(value, "__name__", value)).removeprefix("torch.")
