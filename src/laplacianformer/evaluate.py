"""How good weights are on a labelled set of pictures: `laplacianformer eval`."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import timm.data
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from timm.data import ImageDataset
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from laplacianformer import images, pictures, weights
from laplacianformer.device import chosen_device, device_name
from laplacianformer.errors import InputError
from laplacianformer.files import write_json
from laplacianformer.weights import Weights

READERS = ("torch/", "hfds/")  # of timm's, those that name their classes and have their pictures in a fixed order
SPLITS = frozenset({"train", "training", "val", "valid", "validation", "eval", "evaluation", "test"})


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
    file: Path,
    data: str,
    split: str,
    output: Path,
    batch_size: int,
    workers: int,
    device: str | None,
) -> int:
    """The command. Returns its exit code: 0, or 1 where some pictures could not be read."""
    if weights.stated_task(file) == "detection":
        return _run_detection(file=file, data=data, split=split, output=output, workers=workers, device=device)
    loaded = weights.load_weights(file)
    opened = open_data(data, loaded.classes, split=split)
    place = chosen_device(device)
    pictures.require()
    output.mkdir(parents=True, exist_ok=True)
    result = evaluate(loaded, opened, batch_size=batch_size, workers=workers, device=place)
    pictures.confusion(result.confusion, loaded.classes, output / "confusion.png")
    stated = {"weights": str(file), "data": data, "split": split, "batch_size": batch_size}
    write_json(output / "eval.json", {**stated, **asdict(result)})
    console = Console()
    console.print(*tables(result), sep="\n")
    console.print(Text(f"Saved: {output / 'eval.json'}, {output / 'confusion.png'}"), soft_wrap=True)
    for line in result.unreadable:
        Console(stderr=True, soft_wrap=True).print(Text(f"not counted: {line}", "red"))
    return 1 if result.unreadable else 0


def _run_detection(**arguments: Any) -> int:
    try:
        from laplacianformer import evaluate_detection
    except ImportError as error:
        raise InputError(f"evaluating a detector needs {error.name}: pip install 'laplacianformer[train]'") from None
    return evaluate_detection.run(**arguments)


class Labelled(Dataset[tuple[Any, int]]):
    """Pictures with the number of their class among those of the weights, before any transform."""

    def __init__(self, source: Any, numbers: Sequence[int]) -> None:
        self.source, self.numbers = source, numbers

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        # Around timm's own __getitem__, which takes the next picture for one that can't be read.
        entry = self.source.reader[index] if isinstance(self.source, ImageDataset) else self.source[index]
        return entry[0], self.numbers[int(entry[1])]

    def name(self, index: int) -> str:
        if isinstance(self.source, ImageDataset):
            return str(self.source.filename(index, absolute=True))
        return f"picture {index}"


def open_data(data: str, classes: Sequence[str], *, split: str = "validation") -> Labelled:
    """`[READER:]DIR`, a data set of timm's readers, if its classes are those of the weights.

    Without a reader, DIR is a folder (or tar) that holds the class folders, or its parent with a folder for the split.
    """
    reader, colon, root = data.partition(":")
    folder = not colon or Path(data).exists()
    if folder:
        reader, root = "", data
    elif not reader.startswith(READERS):
        raise InputError(f"there is no {data}: expected a folder, a tar, torch/NAME:DIR or hfds/NAME:DIR")
    if not Path(root).exists():
        raise InputError(f"there is no {root}: expected a folder (or tar) with one folder of pictures a class")
    try:
        source = timm.data.create_dataset(reader, root, split=split)
    except (AssertionError, ImportError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"can't read {data} ({split}): {' '.join(str(error).split())}") from None
    names = getattr(source, "reader", source)
    named = getattr(names, "class_to_idx", None) or getattr(names, "class_name_to_idx", None)  # the latter: a tar
    if not named:
        raise InputError(f"{data} doesn't name its classes, so they can't be checked against those of the weights")
    if folder:
        _check_splits(Path(root), Path(source.reader.root), classes)
    _check_classes(data, list(named), classes)
    numbers = {name: number for number, name in enumerate(classes)}
    return Labelled(source, [numbers[name] for name in sorted(named, key=named.__getitem__)])


def _check_splits(given: Path, taken: Path, classes: Sequence[str]) -> None:
    """timm names a class after the last folder: train/ and test/ side by side would be read as one set."""
    if given != taken or not given.is_dir():
        return
    found = sorted(entry.name for entry in given.iterdir() if entry.is_dir() and entry.name in SPLITS - set(classes))
    if found:
        raise InputError(f"{given} holds {' and '.join(found)}: name the one to evaluate, as --data {given / found[0]}")


def _check_classes(data: str, found: Sequence[str], expected: Sequence[str]) -> None:
    if list(found) == [""]:
        raise InputError(f"the pictures lie in {data} itself: expected one folder a class")
    unknown, missing = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
    parts = []
    if unknown:
        parts.append(f"{data} has classes that the weights don't know: {_few(unknown)}")
    if missing:
        parts.append(f"{data} has no pictures of: {_few(missing)}")
    if parts:
        raise InputError(f"{'; '.join(parts)}. The weights know: {_few(expected)}")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 10 else f"{', '.join(names[:10])} and {len(names) - 10} more"


class _Inputs(Dataset[tuple[Tensor, int, str]]):
    """What the model takes, the class, and the reason why there is nothing to take."""

    def __init__(self, labelled: Labelled, taken: dict[str, Any]) -> None:
        self.labelled, self.taken, self.transform = labelled, taken, images.to_input(taken)

    def __len__(self) -> int:
        return len(self.labelled)

    def __getitem__(self, index: int) -> tuple[Tensor, int, str]:
        try:
            picture, target = self.labelled[index]
            return self.transform(images.read(picture, self.taken["size"][0])), target, ""
        except (InputError, OSError) as error:
            return torch.zeros(self.taken["size"]), 0, f"{self.labelled.name(index)}: {error}"


@torch.inference_mode()
def evaluate(
    loaded: Weights,
    data: Labelled,
    *,
    batch_size: int = 64,
    workers: int = 0,
    device: torch.device | None = None,
) -> Evaluation:
    """Run every picture through the model once. Memory: one batch and the confusion matrix."""
    device = device or torch.device("cpu")
    model, count = loaded.model.to(device), len(loaded.classes)
    confusion = torch.zeros(count, count, dtype=torch.long)
    among_five, seconds, warm_up, unreadable = 0, 0.0, 0.0, list[str]()
    begin = time.perf_counter()
    for inputs, targets, reasons in _batches(data, loaded.input, batch_size, workers):
        unreadable += [reason for reason in reasons if reason]
        readable = torch.tensor([not reason for reason in reasons])
        if not readable.any():
            continue
        inputs, targets = inputs[readable].to(device), targets[readable]
        if seconds == 0:
            _, warm_up = _timed(model, inputs)
        logits, passed = _timed(model, inputs)
        seconds += passed
        if not logits.isfinite().all():
            raise InputError(f"{loaded.path} gives outputs that are not finite: its training went wrong")
        best = logits.topk(min(5, count)).indices
        among_five += int((best == targets[:, None]).any(1).sum())
        confusion.index_put_((targets, best[:, 0]), torch.ones_like(targets), accumulate=True)
    if seconds == 0:
        raise InputError(f"none of the {len(data)} pictures can be read; the first: {unreadable[0]}")
    total, right = int(confusion.sum()), confusion.diagonal()
    return Evaluation(
        images=total,
        top1=int(right.sum()) / total,
        top5=among_five / total if count >= 6 else None,
        per_class=_per_class(loaded.classes, confusion),
        confusion=confusion.tolist(),
        images_per_second=total / seconds,
        images_per_second_with_reading=total / (time.perf_counter() - begin - warm_up),
        device=device_name(device),
        unreadable=unreadable,
    )


def _per_class(classes: Sequence[str], confusion: Tensor) -> dict[str, float | None]:
    right, totals = confusion.diagonal().tolist(), confusion.sum(1).tolist()
    return {name: a / b if b else None for name, a, b in zip(classes, right, totals, strict=True)}


def _batches(
    data: Labelled, taken: dict[str, Any], batch_size: int, workers: int
) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
    loader = DataLoader(_Inputs(data, taken), batch_size, num_workers=workers)
    console = Console(stderr=True)
    yield from track(loader, "evaluating", console=console, transient=True, disable=not console.is_terminal)


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
