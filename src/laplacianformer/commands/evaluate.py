"""`laplacianformer eval`: accuracy and speed of a model of any task on labelled data."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laplacianformer._util.errors import InputError
from laplacianformer.commands import (
    evaluate_classes,
    evaluate_detector,
    evaluate_encoder,
    evaluate_segmenter,
    options,
    terminal,
    without,
)

if TYPE_CHECKING:
    from laplacianformer.classification._evaluation import Evaluation

SUMMARY = "accuracy and speed of weights on labelled images or sequences"
DESCRIPTION = (
    "Prints top-1 and top-5 (with six classes or more), the accuracy of each class and images per second, and writes "
    "them to eval.json, with the confusion matrix in confusion.png. For a detector: COCO's twelve numbers of boxes and "
    "masks, with some of the images in detections.png. For a segmenter: intersection over union, also of each class, "
    "and pixel accuracy, with some of the images in segmentation.png. For a sequence encoder: accuracy, also of each "
    "class, and sequences per second, in eval.json and confusion.png."
)
EPILOG = """examples:
  laplacianformer eval --weights runs/demo/model.safetensors --data digits/test
  laplacianformer eval --weights nano.safetensors --data imagenet/ --split validation --workers 8
  laplacianformer eval --data torch/cifar10:downloads
  laplacianformer eval --data cifar10/ --without-attention mean
  laplacianformer eval --data cifar10/ --without-attention off --layers stages.2 stages.3
  laplacianformer eval --weights detector.safetensors --data coco/
  laplacianformer eval --weights runs/shapes-maskrcnn/model.safetensors --data shapes
  laplacianformer eval --weights runs/camvid/model.safetensors --data camvid/ --split test
  laplacianformer eval --weights runs/lra-listops/model.safetensors --data listops --split test
  laplacianformer eval --weights runs/lra-text/model.safetensors --data imdb/

The class folders must have the names of the classes that the weights know.
exit code: 0; 1 if some images could not be read (each is named and not
counted); 2 for input that can't be used"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="weights of a classifier, a detector, a segmenter or a sequence encoder (.safetensors; default: the "
        "classifier in the package)",
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="[READER:]DIR",
        help="folder or tar with one folder per class, the parent of such a folder, or anything that train reads",
    )
    options.add_allow_pipes(parser)
    parser.add_argument(
        "--split",
        default="validation",
        metavar="NAME",
        help="part of the data; as in training, validation may be called val, valid, eval or test "
        "(default: %(default)s)",
    )
    options.add_output(parser, Path("runs/eval"))
    parser.add_argument(
        "--batch-size",
        type=options.positive,
        default=64,
        metavar="N",
        help="for classifiers and sequence encoders (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=options.workers,
        default=2,
        metavar="N",
        help="processes that read images (default: %(default)s)",
    )
    options.add_window(parser)
    without.add_arguments(parser)
    options.add_device(parser)
    options.add_precision(parser)


def run(arguments: argparse.Namespace) -> int:
    """The exit code is 0, or 1 if some images could not be read."""
    tasks = {
        "classification": _evaluate_classifier,
        "detection": evaluate_detector.evaluate,
        "segmentation": evaluate_segmenter.evaluate,
        "sequences": evaluate_encoder.evaluate,
    }
    task, evaluate = options.for_task(arguments.weights, tasks)
    without.check(arguments, task)
    if arguments.window is not None and task != "segmentation":
        raise InputError("--window is for segmenters: these weights are of another task")
    with options.computing(arguments):
        unreadable = evaluate(arguments)
    for line in unreadable:
        terminal.warn(f"not counted: {line}")
    return 1 if unreadable else 0


def _evaluate_classifier(arguments: argparse.Namespace) -> Sequence[str]:
    from laplacianformer.classification import evaluate, open_batches

    loaded = options.load_classifier(arguments.weights)
    batches = open_batches(
        loaded,
        arguments.data,
        arguments.split,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        allow_pipes=arguments.allow_pipes,
    )
    score = evaluate_classes.Score("top-1", "top1")
    return evaluate_classes.evaluate(arguments, loaded, batches, evaluate, score=score, unit="images", rows=_rows)


def _rows(result: "Evaluation") -> list[tuple[str, str]]:
    top5 = [] if result.top5 is None else [("top-5", f"{100 * result.top5:.2f} %")]
    return [
        *top5,
        ("model alone", f"{result.images_per_second:,.0f} images/s"),
        ("with reading", f"{result.images_per_second_with_reading:,.0f} images/s"),
    ]
