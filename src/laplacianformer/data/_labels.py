"""Classes are matched by name: the same class may have different indices in two data sets, or in a weights file."""

from collections.abc import Iterable, Iterator, Sequence
from operator import length_hint

import torch

from laplacianformer._util.errors import InputError
from laplacianformer._util.limits import one_line
from laplacianformer.data._batch import NO_LABEL, Batch


def numbers_among(found: Sequence[str], expected: Sequence[str], what: str, whose: str) -> list[int]:
    """The index of each found class among the expected ones, which have to be the same.

    For messages: `what` is where the classes were found, `whose` who doesn't know the others: "training doesn't".
    """
    unknown, missing = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
    parts = []
    if unknown:
        parts.append(f"{what} has classes that {whose} know: {few(unknown)}")
    if missing:
        parts.append(f"{what} has no images of: {few(missing)}")
    if parts:
        raise InputError(f"{'; '.join(parts)}. Expected: {few(expected)}")
    numbers = {name: number for number, name in enumerate(expected)}
    return [numbers[name] for name in found]


def few(names: Sequence[str]) -> str:
    """At most ten names, for messages: each in one line, and cut where it is long."""
    said = ", ".join(map(one_line, names[:10]))
    return said if len(names) <= 10 else f"{said} and {len(names) - 10} more"


class Renumbered:
    """Batches with each label replaced by `numbers[label]`."""

    def __init__(self, batches: Iterable[Batch], numbers: Sequence[int]) -> None:
        self.batches, self.numbers = batches, torch.tensor([*numbers, NO_LABEL])  # NO_LABEL is -1, the last

    def __length_hint__(self) -> int:
        return length_hint(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            yield batch._replace(targets=self.numbers[batch.targets])
