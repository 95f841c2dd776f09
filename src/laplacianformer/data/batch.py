"""What a loader hands over, and the count of images that could not be read."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from laplacianformer.errors import InputError

logger = logging.getLogger(__name__)


NO_LABEL = -1  # of an image that doesn't count: unreadable, or there so that all processes have equally many


class Batch(NamedTuple):
    """Normalised images (B, 3, H, W), labels (B,), and one line for each image that could not be read."""

    images: Tensor
    targets: Tensor
    corrupt: tuple[str, ...] = ()


class Corrupt:
    """Counts unreadable images, names each once in the log, and stops the run when they are too many."""

    def __init__(self, limit: float) -> None:
        self.limit, self.count, self.named = limit, 0, set[str]()

    def add(self, lines: Iterable[str], total: int) -> None:
        """Of `total` images that are read in an epoch."""
        for line in lines:
            self.count += 1
            if line not in self.named:
                self.named.add(line)
                logger.warning("unreadable image, replaced or left out: %s", line)
            if self.count > self.limit * total:
                raise InputError(
                    f"more than {self.limit:.3%} of {total} images (data.corrupt_limit) can't be read; the last: {line}"
                )

    def start_epoch(self) -> None:
        self.count = 0
