"""How good weights are on a labelled set of pictures: `laplacianformer eval`."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from laplacianformer import plots, weights
from laplacianformer._util import files
from laplacianformer._util.devices import chosen_device, device_name
from laplacianformer._util.errors import InputError
from laplacianformer.classification.pictures import draw_confusion
from laplacianformer.data.batch import NO_LABEL, Batch
from laplacianformer.data.evaluation import evaluation_batches
from laplacianformer.data.labels import Renumbered, numbers_among
from laplacianformer.data.sources import Source, open_images, parse
from laplacianformer.weights import Weights


@dataclass(frozen=True)
class Evaluation:
    """Shares are from 0 to 1. Pictures that can't be read are named and count in nothing else."""

    images: int
    top1: float
    top5: float | None  # with six classes or more
    per_class: dict[str, float | None]  # None where there were no pictures
    confusion: list[list[int]]  # row: true class, column: predicted
    images_per_second: float  # of the model alone, after a warm-up
    images_per_second_with_reading: float
    device: str
    unreadable: list[str]


def run(
    *,
    file: Path | None,
    data: str,
    split: str,
    output: Path,
    batch_size: int,
    workers: int,
    device: str | None,
) -> int:
    """The command. Returns its exit code: 0, or 1 where some pictures could not be read."""
    if file is not None and weights.stated_task(file) == "detection":
        return _run_detection(file=file, data=data, split=split, output=output, workers=workers, device=device)
    loaded = weights.load_chosen(file)
    batches = open_batches(loaded, data, split, batch_size=batch_size, workers=workers)
    place = chosen_device(device)
    plots.require()
    files.check_folder(output)
    result = evaluate(loaded, batches, place)
    draw_confusion(result.confusion, loaded.classes, output / "confusion.png")
    stated = {"weights": str(loaded.path), "data": data, "split": split, "batch_size": batch_size}
    files.write_json(output / "eval.json", {**stated, **asdict(result)})
    console = Console()
    console.print(*tables(result), sep="\n")
    console.print(Text(f"Saved: {output / 'eval.json'}, {output / 'confusion.png'}"), soft_wrap=True)
    for line in result.unreadable:
        Console(stderr=True, soft_wrap=True).print(Text(f"not counted: {line}", "red"))
    return 1 if result.unreadable else 0


def _run_detection(**arguments: Any) -> int:
    try:
        from laplacianformer.detection import evaluation as evaluate_detection
    except ImportError as error:
        raise InputError(f"evaluating a detector needs {error.name}: pip install 'laplacianformer[train]'") from None
    return evaluate_detection.run(**arguments)


def open_batches(
    loaded: Weights, data: str, split: str = "validation", *, batch_size: int = 64, workers: int = 0
) -> Iterable[Batch]:
    """`[READER:]DIR`, read as training reads it, labelled by the classes of the weights.

    DIR may also be the folder (or tar) that holds the class folders itself.
    """
    reader, root = parse(data)
    opened = open_images(Source(reader or "folder", root, split, len(loaded.classes), inside=loaded.classes))
    numbers = numbers_among(opened.classes, loaded.classes, data, "the weights don't")
    return Renumbered(evaluation_batches(opened, loaded.input, batch_size, workers), numbers)


def evaluate(loaded: Weights, batches: Iterable[Batch], device: torch.device | None = None) -> Evaluation:
    """Run every picture through the model once. Memory: one batch and the confusion matrix."""
    device = device or torch.device("cpu")
    model, counts = loaded.model.to(device), Counts(len(loaded.classes))
    begin, alone, warm_up = time.perf_counter(), 0.0, 0.0
    for batch in _shown(batches):
        counts.unreadable += batch.corrupt
        readable = batch.targets != NO_LABEL
        if not readable.any():
            continue
        inputs = batch.images[readable].to(device)
        if alone == 0:
            _, warm_up = _timed(model, inputs)
        logits, passed = _timed(model, inputs)
        alone += passed
        if not logits.isfinite().all():
            raise InputError(f"{loaded.path} gives outputs that are not finite: its training went wrong")
        counts.add(logits, batch.targets[readable])
    everything = time.perf_counter() - begin - warm_up
    return counts.evaluation(loaded.classes, alone, everything, device_name(device))


class Counts:
    """What is added up over batches."""

    def __init__(self, classes: int) -> None:
        self.confusion = torch.zeros(classes, classes, dtype=torch.long)
        self.among_five = 0
        self.unreadable: list[str] = []

    def add(self, logits: Tensor, targets: Tensor) -> None:
        best = logits.topk(min(5, len(self.confusion))).indices
        self.among_five += int((best == targets[:, None]).any(1).sum())
        self.confusion.index_put_((targets, best[:, 0]), torch.ones_like(targets), accumulate=True)

    def evaluation(self, classes: Sequence[str], alone: float, everything: float, device: str) -> Evaluation:
        """Shares and speeds, from the seconds of the model alone and those of everything."""
        total, right = int(self.confusion.sum()), self.confusion.diagonal()
        if total == 0:
            first = self.unreadable[0] if self.unreadable else "there is none"
            raise InputError(f"none of the {len(self.unreadable)} pictures can be read; the first: {first}")
        rows = zip(classes, right.tolist(), self.confusion.sum(1).tolist(), strict=True)
        return Evaluation(
            images=total,
            top1=int(right.sum()) / total,
            top5=self.among_five / total if len(classes) >= 6 else None,
            per_class={name: good / count if count else None for name, good, count in rows},
            confusion=self.confusion.tolist(),
            images_per_second=total / alone,
            images_per_second_with_reading=total / everything,
            device=device,
            unreadable=self.unreadable,
        )


def _shown(batches: Iterable[Batch]) -> Iterable[Batch]:
    """With a progress bar, where there is someone to look at it."""
    console = Console(stderr=True)
    return track(batches, "evaluating", console=console, transient=True, disable=not console.is_terminal)


@torch.inference_mode()
def _timed(model: nn.Module, inputs: Tensor) -> tuple[Tensor, float]:
    """The outputs on the CPU, and the seconds they took: copying them waits for the device."""
    begin = time.perf_counter()
    logits = model(inputs).float().cpu()
    return logits, time.perf_counter() - begin


def tables(result: Evaluation) -> Iterator[Table]:
    summary = Table(title="Evaluation")
    summary.add_column("")
    summary.add_column("", justify="right")
    summary.add_row("pictures", f"{result.images:,}")
    summary.add_row("top-1", f"{100 * result.top1:.2f} %")
    if result.top5 is not None:
        summary.add_row("top-5", f"{100 * result.top5:.2f} %")
    summary.add_row("model alone", f"{result.images_per_second:,.0f} images/s")
    summary.add_row("with reading", f"{result.images_per_second_with_reading:,.0f} images/s")
    summary.add_row("device", result.device)
    yield summary

    by_class = Table(title="Classes, the worst first")
    for title in ("class", "pictures", "accuracy", "most often taken for"):
        by_class.add_column(title, justify="right" if title in ("pictures", "accuracy") else "left")
    names = list(result.per_class)
    order = sorted(range(len(names)), key=lambda number: result.per_class[names[number]] or 0.0)
    for number in order[:20]:
        row = list(result.confusion[number])
        total, row[number] = sum(row), 0
        other = f"{names[row.index(max(row))]} ({max(row)})" if max(row) else "-"
        share = result.per_class[names[number]]
        by_class.add_row(Text(names[number]), str(total), "-" if share is None else f"{100 * share:.1f} %", Text(other))
    if len(names) > 20:
        by_class.caption = f"{len(names) - 20} better classes are in eval.json"
    yield by_class
