"""`laplacianformer eval` for detectors."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.table import Table

from laplacianformer._util.errors import InputError
from laplacianformer.commands import terminal

if TYPE_CHECKING:
    from laplacianformer.detection._scores import Scores


def evaluate(arguments: argparse.Namespace) -> Sequence[str]:
    """Measure and write; returns a line for each image that can't be read."""
    try:
        from laplacianformer.detection._evaluation import draw_examples, open_data
        from laplacianformer.detection._evaluation import evaluate as measure
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
    result = measure(loaded, images, device=device, workers=arguments.workers, progress=progress)

    numbers, figure = arguments.output / "eval.json", arguments.output / "detections.png"
    files.write_json(
        numbers,
        {
            "weights": str(arguments.weights),
            "data": arguments.data,
            "split": arguments.split,
            "precision": arguments.precision,
            "device": result.device,
            "images": result.images,
            "images_per_second": result.images_per_second,
            "unreadable": result.unreadable,
            **result.scores,
        },
    )
    draw_examples(result, figure)
    title = f"{result.images:,} images, {result.images_per_second:.1f} per second"
    terminal.show(_table(result.scores, title), f"Saved: {numbers}, {figure}")
    return result.unreadable


def _table(scores: "Scores", title: str) -> Table:
    """COCO's twelve numbers, with one column for boxes and one for masks."""
    from laplacianformer.detection._scores import NUMBERS, percent

    table = Table(title=title)
    table.add_column("%", no_wrap=True)
    for kind in scores:
        table.add_column(kind, justify="right")
    for name in NUMBERS:
        table.add_row(name.replace("_", " "), *(percent(numbers[name]) for numbers in scores.values()))
    return table
