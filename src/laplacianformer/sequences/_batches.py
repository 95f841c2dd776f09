"""Batches of sequences: padded to the longest of the batch, with a mask of the tokens that count."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from laplacianformer.data import NO_LABEL
from laplacianformer.data._batch import lasting_options
from laplacianformer.data._order import Order
from laplacianformer.data._training import EpochBatches, read_or_neighbour
from laplacianformer.sequences._sources import SINGLE, Form, Label, Sequence, Sequences

Sample = tuple[Sequence, Label, tuple[str, ...]]  # tokens, label, and one line for each sequence that could not be read


class SequenceBatch(NamedTuple):
    """Tokens (B, N), or (B, 2, N) of pairs; a mask of the same shape, True where a token counts (None: everywhere);
    labels (B,), or (B, N) of tokens; and one line for each sequence that could not be read."""

    tokens: Tensor
    mask: Tensor | None
    targets: Tensor
    corrupt: tuple[str, ...] = ()


def collate(samples: list[Sample]) -> SequenceBatch:
    """The batch of these samples."""
    tokens, mask = pad([sample[0] for sample in samples])
    targets = _targets([sample[1] for sample in samples])
    return SequenceBatch(tokens, mask, targets, tuple(line for sample in samples for line in sample[2]))


def _targets(labels: list[Label]) -> Tensor:
    """The labels of a batch; where each token has one, there is none in the padding."""
    dense = [torch.from_numpy(label).long() for label in labels if isinstance(label, np.ndarray)]
    return nn.utils.rnn.pad_sequence(dense, batch_first=True, padding_value=NO_LABEL) if dense else torch.tensor(labels)


def pad(sequences: list[Sequence]) -> tuple[Tensor, Tensor | None]:
    """Tokens and mask of a batch."""
    rows = [each if isinstance(each, tuple) else (each,) for each in sequences]
    longest = max(len(part) for row in rows for part in row)
    tokens = np.zeros((len(rows), len(rows[0]), longest), dtype=np.int64)
    mask = np.zeros(tokens.shape, dtype=bool)
    for number, row in enumerate(rows):
        for column, part in enumerate(row):
            tokens[number, column, : len(part)] = part
            mask[number, column, : len(part)] = True
    shape = (len(rows), longest) if len(rows[0]) == 1 else tokens.shape
    counted = None if mask.all() else torch.from_numpy(mask).view(shape)
    return torch.from_numpy(tokens).view(shape), counted


class Cached:
    """Sequences that are kept once they were read."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences, self.classes = sequences, sequences.classes
        self.kept: dict[int, tuple[Sequence, Label]] = {}

    def __len__(self) -> int:
        return len(self.sequences)

    def read(self, index: int) -> tuple[Sequence, Label]:
        if index not in self.kept:
            self.kept[index] = self.sequences.read(index)
        return self.kept[index]

    def name(self, index: int) -> str:
        return self.sequences.name(index)


class _TrainingSequences(Dataset[Sample]):
    """Sequences by (epoch, key); instead of one that can't be read, another one."""

    def __init__(self, sequences: Sequences, form: Form) -> None:
        self.sequences, self.form = sequences, form

    def __getitem__(self, epoch_and_key: tuple[int, int]) -> Sample:
        found, corrupt = read_or_neighbour(self.sequences, epoch_and_key[1])
        if found is None:
            return *self.form.nothing(0), corrupt
        return *found, corrupt


def training_batches(
    sequences: Sequences, order: Order, workers: int, form: Form = SINGLE
) -> EpochBatches[SequenceBatch]:
    """Batches that depend on the order alone."""
    return EpochBatches(_TrainingSequences(sequences, form), order, collate, workers)


class _HeldOutSequences(Dataset[Sample]):
    """The sequences of this process; unreadable ones, and those that pad the last round, have no label."""

    def __init__(self, sequences: Sequences, rank: int, world: int, form: Form) -> None:
        self.sequences, self.form = sequences, form
        self.index = range(rank, -(-len(sequences) // world) * world, world)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> Sample:
        index = self.index[position]
        if index >= len(self.sequences):
            return self._nothing()
        try:
            return *self.sequences.read(index), ()
        except Exception as error:  # whatever a broken file makes a decoder raise
            return self._nothing(f"{self.sequences.name(index)}: {error}")

    def _nothing(self, *reason: str) -> Sample:
        return *self.form.nothing(NO_LABEL), reason


def held_out_batches(
    sequences: Sequences, batch_size: int, workers: int, rank: int = 0, world: int = 1, form: Form = SINGLE
) -> "DataLoader[Any]":
    """Each sequence once, in order; all processes have the same number."""
    dataset = _HeldOutSequences(sequences, rank, world, form)
    return DataLoader(dataset, batch_size, collate_fn=collate, **lasting_options(workers))


@dataclass
class SequenceLoaders:
    """Training batches, evaluation batches, the names of the classes, and the number of sequences per split."""

    train: EpochBatches[SequenceBatch]
    val: Iterable[SequenceBatch]
    classes: tuple[str, ...]
    counts: dict[str, int | None]
