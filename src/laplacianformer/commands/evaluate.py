"""`laplacianformer eval`: accuracy and speed of a classifier or a detector on labelled images."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from laplacianformer._util.errors import InputError
from laplacianformer.commands import options, terminal

if TYPE_CHECKING:
    from laplacianformer.classification._evaluation import Evaluation
    from laplacianformer.detection._scores import Scores

SUMMARY = "accuracy and speed of weights on labelled images"
DESCRIPTION = (
    "Prints top-1 and top-5 (with six classes or more), the accuracy of each class and images per second, and writes "
    "them to eval.json, with the confusion matrix in confusion.png. For a detector: COCO's twelve numbers of boxes and "
    "masks, with some of the images in detections.png."
)
EPILOG = """examples:
  laplacianformer eval --weights runs/demo/model.safetensors --data digits/test
  laplacianformer eval --weights nano.safetensors --data imagenet/ --split validation --workers 8
  laplacianformer eval --data torch/cifar10:downloads
  laplacianformer eval --weights detector.safetensors --data coco/
  laplacianformer eval --weights runs/shapes-maskrcnn/model.safetensors --data shapes

The class folders must have the names of the classes that the weights know.
exit code: 0; 1 if some images could not be read (each is named and not
counted); 2 for input that can't be used"""
MOST_CLASSES = 20  # rows of the table of classes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="weights of a classifier or detector (.safetensors; default: the classifier in the package)",
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="[READER:]DIR",
        help="folder or tar with one folder per class, the parent of such a folder, or anything that train reads",
    )
    parser.add_argument(
        "--split",
        default="validation",
        metavar="NAME",
        help="part of the data; as in training, validation may be called val, valid, eval or test "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/eval"),
        metavar="DIR",
        help="folder to write to (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size", type=options.positive, default=64, metavar="N", help="for classifiers (default: %(default)s)"
    )
    parser.add_argument(
        "--workers",
        type=options.workers,
        default=2,
        metavar="N",
        help="processes that read images (default: %(default)s)",
    )
    options.add_device(parser)


def run(arguments: argparse.Namespace) -> int:
    """The exit code is 0, or 1 if some images could not be read."""
    from laplacianformer import weights

    if arguments.weights is not None and weights.stated_task(arguments.weights) == "detection":
        unreadable = _evaluate_detector(arguments)
    else:
        unreadable = _evaluate_classifier(arguments)
    for line in unreadable:
        terminal.warn(f"not counted: {line}")
    return 1 if unreadable else 0


def _evaluate_classifier(arguments: argparse.Namespace) -> Sequence[str]:
    from laplacianformer import plots
    from laplacianformer._util import files
    from laplacianformer._util.devices import chosen_device
    from laplacianformer.classification._evaluation import evaluate, open_batches
    from laplacianformer.classification._pictures import draw_confusion

    loaded = options.load_classifier(arguments.weights)
    batches = open_batches(
        loaded, arguments.data, arguments.split, batch_size=arguments.batch_size, workers=arguments.workers
    )
    device = chosen_device(arguments.device)
    plots.require_matplotlib()
    files.check_folder(arguments.output)
    result = evaluate(loaded, terminal.progress(batches, "evaluating"), device)

    numbers, figure = arguments.output / "eval.json", arguments.output / "confusion.png"
    draw_confusion(result.confusion, loaded.classes, figure)
    given = {
        "weights": str(loaded.path),
        "data": arguments.data,
        "split": arguments.split,
        "batch_size": arguments.batch_size,
    }
    files.write_json(numbers, {**given, **asdict(result)})
    terminal.show(_summary(result), _class_table(result), f"Saved: {numbers}, {figure}")
    return result.unreadable


def _evaluate_detector(arguments: argparse.Namespace) -> Sequence[str]:
    try:
        from laplacianformer.detection._evaluation import draw_examples, evaluate, open_data
    except ImportError as error:
        raise InputError(f"evaluating a detector needs {error.name}: pip install 'laplacianformer[train]'") from None
    from laplacianformer._util import files
    from laplacianformer._util.devices import chosen_device
    from laplacianformer.detection._weights import load_detector

    loaded = load_detector(arguments.weights)
    images = open_data(loaded, arguments.data, arguments.split)
    device = chosen_device(arguments.device)
    files.check_folder(arguments.output)
    progress = partial(terminal.progress, label="evaluating")
    result = evaluate(loaded, images, device=device, workers=arguments.workers, progress=progress)

    numbers, figure = arguments.output / "eval.json", arguments.output / "detections.png"
    files.write_json(
        numbers,
        {
            "weights": str(arguments.weights),
            "data": arguments.data,
            "split": arguments.split,
            "device": result.device,
            "images": result.images,
            "images_per_second": result.images_per_second,
            "unreadable": result.unreadable,
            **result.scores,
        },
    )
    draw_examples(result, figure)
    title = f"{result.images:,} images, {result.images_per_second:.1f} per second"
    terminal.show(scores_table(result.scores, title), f"Saved: {numbers}, {figure}")
    return result.unreadable


# ---- tables ----


def _summary(result: "Evaluation") -> Table:
    table = Table(title="Evaluation")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("images", f"{result.images:,}")
    table.add_row("top-1", f"{100 * result.top1:.2f} %")
    if result.top5 is not None:
        table.add_row("top-5", f"{100 * result.top5:.2f} %")
    table.add_row("model alone", f"{result.images_per_second:,.0f} images/s")
    table.add_row("with reading", f"{result.images_per_second_with_reading:,.0f} images/s")
    table.add_row("device", result.device)
    return table


def _class_table(result: "Evaluation") -> Table:
    table = Table(title="Classes, the worst first")
    for title in ("class", "images", "accuracy", "most often confused with"):
        table.add_column(title, justify="right" if title in ("images", "accuracy") else "left")
    names = list(result.per_class)
    order = sorted(range(len(names)), key=lambda index: result.per_class[names[index]] or 0.0)
    for index in order[:MOST_CLASSES]:
        wrong = list(result.confusion[index])
        total, wrong[index] = sum(wrong), 0
        other = f"{names[wrong.index(max(wrong))]} ({max(wrong)})" if max(wrong) else "-"
        accuracy = result.per_class[names[index]]
        percent = "-" if accuracy is None else f"{100 * accuracy:.1f} %"
        table.add_row(Text(names[index]), str(total), percent, Text(other))
    if len(names) > MOST_CLASSES:
        table.caption = f"{len(names) - MOST_CLASSES} better classes are in eval.json"
    return table


def scores_table(scores: "Scores", title: str) -> Table:
    """COCO's twelve numbers, with one column for boxes and one for masks."""
    from laplacianformer.detection._scores import NUMBERS, percent

    table = Table(title=title)
    table.add_column("%", no_wrap=True)
    for kind in scores:
        table.add_column(kind, justify="right")
    for name in NUMBERS:
        table.add_row(name.replace("_", " "), *(percent(numbers[name]) for numbers in scores.values()))
    return table
