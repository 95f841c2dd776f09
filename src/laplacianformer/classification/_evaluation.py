"""Accuracy and speed of a classifier on labelled images."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laplacianformer._util.devices import device_name
from laplacianformer._util.errors import InputError
from laplacianformer.data._batch import NO_LABEL, Batch
from laplacianformer.data._evaluation import evaluation_batches
from laplacianformer.data._labels import Renumbered, numbers_among
from laplacianformer.data._sources import Source, open_images, parse
from laplacianformer.inspect._finite import check_outputs
from laplacianformer.weights import Weights

BATCH_SIZE = 64


@dataclass(frozen=True)
class Evaluation:
    """Accuracies are fractions from 0 to 1. Images that can't be read are only named, and count nowhere else."""

    images: int
    top1: float
    top5: float | None  # None below six classes
    per_class: dict[str, float | None]  # accuracy; None for a class without images
    confusion: list[list[int]]  # row: true class, column: predicted class
    images_per_second: float  # of the model alone, after a warm-up
    images_per_second_with_reading: float
    device: str
    unreadable: list[str]  # path and reason


def open_batches(
    loaded: Weights,
    data: str,
    split: str = "validation",
    *,
    batch_size: int = BATCH_SIZE,
    workers: int = 0,
    samples: int | None = None,
    allow_pipes: bool = False,
) -> Iterable[Batch]:
    """Batches of `[READER:]DIR`, read as in training, with labels that are indices into the classes of the weights.

    samples: the most images to take, from all over the data; a stream is not shortened.

    DIR may also be the folder (or tar) that itself holds the class folders; with `allow_pipes`, for the reader wds/, a
    shell command (pipe:COMMAND).
    """
    reader, root = parse(data)
    classes = loaded.classes
    source = Source(reader or "folder", root, split, len(classes), samples, inside=classes, allow_pipes=allow_pipes)
    opened = open_images(source)
    numbers = numbers_among(opened.classes, classes, data, "the weights don't")
    return Renumbered(evaluation_batches(opened, loaded.input, batch_size, workers), numbers)


def evaluate(loaded: Weights, batches: Iterable[Batch], device: torch.device | None = None) -> Evaluation:
    """Run every image through the model once, on the CPU if no device is given.

    Memory: one batch and the confusion matrix.
    """
    device = device or torch.device("cpu")
    model, counts = loaded.model.to(device), _Counts(len(loaded.classes))
    begin, model_seconds, warm_up = time.perf_counter(), 0.0, 0.0
    for batch in batches:
        counts.unreadable += batch.corrupt
        readable = batch.targets != NO_LABEL
        if not readable.any():
            continue
        inputs = batch.images[readable].to(device)
        if model_seconds == 0:
            _, warm_up = _timed(model, inputs)
        logits, seconds = _timed(model, inputs)
        model_seconds += seconds
        check_outputs(loaded.path, logits, model, inputs)
        counts.add(logits, batch.targets[readable])
    all_seconds = time.perf_counter() - begin - warm_up
    return counts.evaluation(loaded.classes, model_seconds, all_seconds, device_name(device))


class _Counts:
    """Sums over batches."""

    def __init__(self, classes: int) -> None:
        self.confusion = torch.zeros(classes, classes, dtype=torch.long)
        self.in_top5 = 0
        self.unreadable: list[str] = []

    def add(self, logits: Tensor, targets: Tensor) -> None:
        best = logits.topk(min(5, len(self.confusion))).indices
        self.in_top5 += int((best == targets[:, None]).any(1).sum())
        self.confusion.index_put_((targets, best[:, 0]), torch.ones_like(targets), accumulate=True)

    def evaluation(self, classes: Sequence[str], model_seconds: float, all_seconds: float, device: str) -> Evaluation:
        total, correct = int(self.confusion.sum()), self.confusion.diagonal()
        if total == 0:
            first = self.unreadable[0] if self.unreadable else "there is none"
            raise InputError(f"none of the {len(self.unreadable)} images can be read; the first: {first}")
        rows = zip(classes, correct.tolist(), self.confusion.sum(1).tolist(), strict=True)
        return Evaluation(
            images=total,
            top1=int(correct.sum()) / total,
            top5=self.in_top5 / total if len(classes) >= 6 else None,
            per_class={name: number / count if count else None for name, number, count in rows},
            confusion=self.confusion.tolist(),
            images_per_second=total / model_seconds,
            images_per_second_with_reading=total / all_seconds,
            device=device,
            unreadable=self.unreadable,
        )


@torch.inference_mode()
def _timed(model: nn.Module, inputs: Tensor) -> tuple[Tensor, float]:
    """The outputs on the CPU, and how many seconds they took: copying them waits for the device."""
    begin = time.perf_counter()
    logits = model(inputs).float().cpu()
    return logits, time.perf_counter() - begin
