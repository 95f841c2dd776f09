"""Classes are matched by name: the same folder may have another number in another data set, or in a weights file."""

from collections.abc import Iterable, Iterator, Sequence
from operator import length_hint

import torch

from laplacianformer._util.errors import InputError
from laplacianformer.data.batch import NO_LABEL, Batch


def numbers_among(found: Sequence[str], expected: Sequence[str], what: str, whose: str) -> list[int]:
    """The number of each found class among the expected ones. `what` has the found, `whose` says who expects."""
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
    return ", ".join(names) if len(names) <= 10 else f"{', '.join(names[:10])} and {len(names) - 10} more"


class Renumbered:
    """Batches with the labels changed to `numbers[label]`."""

    def __init__(self, batches: Iterable[Batch], numbers: Sequence[int]) -> None:
        self.batches, self.numbers = batches, torch.tensor([*numbers, NO_LABEL])  # NO_LABEL is -1, the last

    def __length_hint__(self) -> int:
        return length_hint(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            yield batch._replace(targets=self.numbers[batch.targets])
