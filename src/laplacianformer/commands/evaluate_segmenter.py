"""`laplacianformer eval` for segmenters."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from rich.table import Table

from laplacianformer._util.errors import InputError
from laplacianformer.commands import terminal

if TYPE_CHECKING:
    from laplacianformer.segmentation._evaluation import SegmentationEvaluation


def evaluate(arguments: argparse.Namespace) -> Sequence[str]:
    """Measure and write; returns a line for each image that can't be read."""
    try:
        from laplacianformer.segmentation import _evaluation as evaluation
    except ImportError as error:
        raise InputError(f"evaluating a segmenter needs {error.name}: pip install 'laplacianformer[train]'") from None
    from laplacianformer._util import files
    from laplacianformer._util.devices import chosen_device
    from laplacianformer.segmentation._weights import load_segmenter

    loaded = load_segmenter(arguments.weights)
    images = evaluation.open_data(loaded, arguments.data, arguments.split)
    device = chosen_device(arguments.device)
    files.check_folder(arguments.output)
    progress = partial(terminal.progress, label="evaluating")
    result = evaluation.evaluate(
        loaded, images, window=arguments.window, device=device, workers=arguments.workers, progress=progress
    )
    numbers, figure = arguments.output / "eval.json", arguments.output / "segmentation.png"
    given = {"weights": str(arguments.weights), "data": arguments.data, "split": arguments.split}
    speed = {"device": result.device, "images": result.images, "images_per_second": result.images_per_second}
    files.write_json(
        numbers,
        {**given, "window": arguments.window, **speed, "unreadable": result.unreadable, **asdict(result.scores)},
    )
    evaluation.draw_examples(result, figure)
    terminal.show(_table(result), f"Saved: {numbers}, {figure}")
    return result.unreadable


def _table(result: "SegmentationEvaluation") -> Table:
    table = Table(title=f"{result.images:,} images, {result.images_per_second:.1f} per second")
    table.add_column("%", overflow="fold")
    table.add_column("", justify="right")
    table.add_row("mean IoU", f"{result.scores.mean_iou:.1f}")
    table.add_row("pixel accuracy", f"{result.scores.pixel_accuracy:.1f}", end_section=True)
    for name, value in result.scores.rows():
        table.add_row(terminal.plain(f"IoU of {name}"), value)
    return table
