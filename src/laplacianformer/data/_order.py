"""Which samples make up each batch: a pure function of the seed and the epoch, so that a resumed run only skips ahead.

The global batch is the same for any number of processes; each of n processes takes every n-th sample of it.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch

from laplacianformer._util.errors import InputError


@dataclass(frozen=True)
class Order:
    """Training order. A key is `copy * samples + index`: repeats of one image are augmented differently."""

    samples: int
    batch_size: int
    seed: int
    repeats: int = 1
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % self.world:
            raise InputError(
                f"optimise.batch_size={self.batch_size} can't be split over {self.world} processes: "
                f"give a multiple of {self.world}"
            )
        if self.samples < self.batch_size:
            raise InputError(
                f"optimise.batch_size={self.batch_size} is more than the {self.samples} training samples: "
                "give a smaller one"
            )

    def __len__(self) -> int:
        """Batches in an epoch; the samples left over are dropped, different ones in each epoch."""
        return self.samples // self.batch_size

    def keys(self, epoch: int) -> torch.Tensor:
        """(batches, batch_size / world): the keys of this process."""
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
        order = torch.randperm(self.samples, generator=generator)
        keys = (order[:, None] + self.samples * torch.arange(self.repeats)).flatten()
        return keys[: len(self) * self.batch_size].view(len(self), self.batch_size)[:, self.rank :: self.world]


def mix(*numbers: int) -> int:
    """One seed of 63 bits from several numbers; neighbours give unrelated seeds (the finaliser of SplitMix64)."""
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


def seed_all(seed: int) -> None:
    """Seed the generators of Python, numpy and torch: transforms draw from all three."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (timm draws from the global generator)
    torch.manual_seed(seed)
