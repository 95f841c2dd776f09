"""What a loader yields, and the count of images that could not be read."""

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import default_collate

from laplacianformer._util.errors import InputError
from laplacianformer.data._workers import worker_options

logger = logging.getLogger(__name__)


NO_LABEL = -1  # of an image that doesn't count: unreadable, or padding so that all processes have the same number
Sample = tuple[Tensor, int, tuple[str, ...]]  # image, label, and one line for each image that could not be read


class Batch(NamedTuple):
    """Normalised images (B, 3, H, W), labels (B,), and one line for each image that could not be read."""

    images: Tensor
    targets: Tensor
    corrupt: tuple[str, ...] = ()


def collate(samples: list[Sample]) -> Batch:
    """The batch of these samples, for a DataLoader."""
    images, targets = default_collate([sample[:2] for sample in samples])
    return Batch(images, targets, tuple(line for sample in samples for line in sample[2]))


def lasting_options(workers: int) -> dict[str, Any]:
    """Options of a DataLoader that is kept for all epochs."""
    pinned = torch.cuda.is_available()
    return {**worker_options(workers), "persistent_workers": workers > 0, "pin_memory": pinned}


class Corrupt:
    """Counts unreadable samples, names each once in the log, and stops the run when they are too many."""

    def __init__(self, limit: float) -> None:
        self.limit, self.count, self.named = limit, 0, set[str]()

    def add(self, lines: Iterable[str], total: int) -> None:
        """Count these images, out of `total` that are read in an epoch."""
        for line in lines:
            self.count += 1
            if line not in self.named:
                self.named.add(line)
                logger.warning("unreadable, replaced or left out: %s", line)
            if self.count > self.limit * total:
                raise InputError(
                    f"more than {self.limit:.3%} of {total} samples (data.corrupt_limit) can't be read; "
                    f"the last: {line}"
                )

    def start_epoch(self) -> None:
        """Start again from 0; what was named once is not named again."""
        self.count = 0
