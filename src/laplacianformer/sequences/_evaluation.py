"""Accuracy and speed of an encoder on labelled sequences."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from laplacianformer._util.devices import device_name
from laplacianformer._util.errors import InputError
from laplacianformer.data import NO_LABEL
from laplacianformer.data._labels import Renumbered, numbers_among
from laplacianformer.data._sources import parse
from laplacianformer.inspect._finite import check_outputs
from laplacianformer.sequences._batches import SequenceBatch, held_out_batches
from laplacianformer.sequences._recipe import SequenceData
from laplacianformer.sequences._sources import GENERATED, check_length, form_of, open_sequences
from laplacianformer.sequences._weights import EncoderWeights
from laplacianformer.training import _recipes as recipes

_GENERATED_SAMPLES = 2000  # as many as the published test set of ListOps has, where the weights don't say


@dataclass(frozen=True)
class SequenceEvaluation:
    """Accuracies are fractions from 0 to 1, of the tokens that are asked for where each has an answer. Sequences that
    can't be read are only named, and count nowhere else."""

    sequences: int
    accuracy: float
    per_class: dict[str, float | None]  # accuracy; None for a class without sequences
    confusion: list[list[int]]  # row: true class, column: predicted class
    sequences_per_second: float  # of the model alone
    device: str
    unreadable: list[str]  # name and reason


def open_batches(
    loaded: EncoderWeights, data: str, split: str = "validation", *, batch_size: int = 64, workers: int = 0
) -> Iterable[SequenceBatch]:
    """Batches of `[READER:]DIR`, or of a generated task by its name, read as in training.

    Labels are indices into the classes of the weights. A generated split is that of the seed in their recipe.
    """
    given: dict[str, Any] = {"task": loaded.sequence, "length": loaded.model.length}
    if loaded.sequence in GENERATED:
        if data.rstrip(":") != loaded.sequence:
            raise InputError(f"{loaded.path} is for generated sequences: give --data {loaded.sequence}, not {data}")
    else:
        reader, root = parse(data)
        given |= {"reader": reader or "folder", "root": root}
    stated = recipes.stated_section(loaded.path, loaded.metadata, "data", SequenceData, given)
    samples = (stated.val_samples or _GENERATED_SAMPLES) if loaded.sequence in GENERATED else None
    try:
        check_length(stated.task, stated.length, stated.shortest)
    except InputError as error:  # of what the file says, not of what was given
        raise InputError(f"{loaded.path} has a length or a recipe that its task can't have: {error}") from None
    opened = open_sequences(stated.wanted(split, samples))
    numbers = numbers_among(opened.classes, loaded.classes, data, "the weights don't")
    batches = held_out_batches(opened, batch_size, workers, form=form_of(loaded.sequence))
    renumbered: Any = Renumbered(batches, numbers)
    return renumbered


@torch.inference_mode()
def evaluate(
    loaded: EncoderWeights, batches: Iterable[SequenceBatch], device: torch.device | None = None
) -> SequenceEvaluation:
    """Run every sequence through the model once, on the CPU if no device is given."""
    device = device or torch.device("cpu")
    model, count = loaded.model.to(device), len(loaded.classes)
    confusion = torch.zeros(count, count, dtype=torch.long)
    unreadable: list[str] = []
    seconds, sequences = 0.0, 0
    for batch in batches:
        unreadable += batch.corrupt
        begin = time.perf_counter()
        inputs = batch.tokens.to(device), None if batch.mask is None else batch.mask.to(device)
        logits = model(*inputs).float().cpu()
        seconds += time.perf_counter() - begin
        check_outputs(loaded.path, logits, model, *inputs)
        known = batch.targets != NO_LABEL
        sequences += int(known.reshape(len(known), -1).any(1).sum())
        targets = batch.targets[known]
        confusion.index_put_((targets, logits.argmax(1)[known]), torch.ones_like(targets), accumulate=True)
    total, right = int(confusion.sum()), confusion.diagonal()
    if total == 0:
        first = unreadable[0] if unreadable else "there is none"
        raise InputError(f"none of the {len(unreadable)} sequences can be read; the first: {first}")
    rows = zip(loaded.classes, right.tolist(), confusion.sum(1).tolist(), strict=True)
    return SequenceEvaluation(
        sequences=sequences,
        accuracy=int(right.sum()) / total,
        per_class={name: number / of if of else None for name, number, of in rows},
        confusion=confusion.tolist(),
        sequences_per_second=sequences / seconds,
        device=device_name(device),
        unreadable=unreadable,
    )
