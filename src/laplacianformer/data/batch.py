"""What a loader hands over, and the count of images that could not be read."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from laplacianformer.errors import InputError

logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Normalised images (B, 3, H, W), labels (B,), and one line for each image that another one stands in for."""

    images: Tensor
    targets: Tensor
    corrupt: tuple[str, ...] = ()


class Corrupt:
    """Counts unreadable images, names each once in the log, and stops the run when they are too many."""

    def __init__(self, limit: float) -> None:
        self.limit, self.names = limit, dict[str, None]()

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line not in self.names:
                self.names[line] = None
                logger.warning("unreadable image, replaced by another: %s", line)

    def check(self, total: int) -> None:
        if len(self.names) > self.limit * total:
            first = next(iter(self.names))
            raise InputError(
                f"{len(self.names)} of {total} images can't be read, more than data.corrupt_limit={self.limit:g} allows; "
                f"the first: {first}"
            )
