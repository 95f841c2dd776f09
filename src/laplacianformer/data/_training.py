"""Training batches of samples that worker processes read by index, for every task."""

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from torch.utils.data import DataLoader, Dataset, Sampler

from laplacianformer.data._batch import lasting_options
from laplacianformer.data._order import Order

ATTEMPTS = 100  # neighbours tried instead of a sample that can't be read

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)
AnyBatch = TypeVar("AnyBatch")


class Items(Protocol[Item_co]):
    """Samples by index. `read` may raise; `name` says which file that is. Worker processes get a pickled copy."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Item_co: ...

    def name(self, index: int) -> str: ...


def read_or_neighbour(items: Items[Item], key: int) -> tuple[Item | None, tuple[str, ...]]:
    """The sample of a key, or the next one that can be read, and one line for each that could not; None after many."""
    corrupt: list[str] = []
    for attempt in range(ATTEMPTS):
        index = (key + attempt) % len(items)
        try:
            return items.read(index), tuple(corrupt)
        except Exception as error:  # whatever a broken file makes a decoder raise
            corrupt.append(f"{items.name(index)}: {error}")
    return None, tuple(corrupt)


class _EpochSampler(Sampler[list[tuple[int, int]]]):
    """The batches of one epoch, from index `start` on, as lists of (epoch, key)."""

    def __init__(self, order: Order) -> None:
        self.order, self.epoch, self.start = order, 0, 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for keys in self.order.keys(self.epoch)[self.start :].tolist():
            yield [(self.epoch, key) for key in keys]


class EpochBatches(Generic[AnyBatch]):
    """Training batches, from worker processes where there are any.

    dataset: what it has for (epoch, key) depends on these two alone, and so do the batches.
    """

    def __init__(
        self, dataset: Dataset[Any], order: Order, collate: Callable[[list[Any]], AnyBatch], workers: int
    ) -> None:
        self.order, self.sampler = order, _EpochSampler(order)
        self.loader: DataLoader[Any] = DataLoader(
            dataset, batch_sampler=self.sampler, collate_fn=collate, **lasting_options(workers)
        )

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[AnyBatch]:
        """The batches of an epoch from index `start` on; those before it are not read."""
        self.sampler.epoch, self.sampler.start = epoch, start
        yield from self.loader
