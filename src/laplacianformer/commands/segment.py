"""`laplacianformer segment`: the class of every pixel, as colours over the image and as a label map."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from laplacianformer.commands import options, terminal

SUMMARY = "find the class of every pixel of images"
DESCRIPTION = (
    "Draws the classes in colours over a copy of each image, with a legend (NAME.png), writes the label map "
    "(NAME-labels.png, one channel, in the values of the label maps that the weights were trained on), and "
    "segmentation.json with what each class covers."
)
EPILOG = """examples:
  laplacianformer segment --weights runs/shapes-segmentation/model.safetensors images/
  laplacianformer segment --weights segmenter.safetensors street.jpg 'holiday/*.jpg' --window 512 --output found

exit code: 0; 1 if some images could not be read (each is named, the others are
drawn); 2 if none could, or if something else in the input can't be used"""
_NAMED = 5  # classes of an image in the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_images(parser)
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE", help="weights of a segmenter")
    options.add_window(parser)
    options.add_output(parser, Path("runs/segment"))
    options.add_device(parser)
    options.add_precision(parser)


def run(arguments: argparse.Namespace) -> int:
    """The exit code is 0, 1 if some images failed, 2 if all did."""
    with options.computing(arguments):
        return _segment(arguments)


def _segment(arguments: argparse.Namespace) -> int:
    from laplacianformer._util.files import UnusedPaths, write_json
    from laplacianformer.data import _images as images
    from laplacianformer.plots._pillow import save
    from laplacianformer.segmentation._inference import segment
    from laplacianformer.segmentation._pictures import fractions, overlay, save_label_map, with_legend
    from laplacianformer.segmentation._weights import load_segmenter

    loaded = load_segmenter(arguments.weights)
    written, failures = [], []
    unused = UnusedPaths(arguments.output, [path for path, _ in images.find(arguments.images, warn=False)])
    table = Table()
    for title in ("image", "classes", "drawn in"):
        table.add_column(title, overflow="fold")
    for found in segment(loaded, arguments.images, window=arguments.window, device=arguments.device):
        if found.image is None or found.classes is None:
            failures.append({"image": str(found.path), "reason": found.failure})
            terminal.warn(f"{found.path}: {found.failure}")
            continue
        drawn = unused.next(found.path.stem, ".png")
        labels = unused.next(f"{drawn.stem}-labels", ".png")
        covered = fractions(found.classes, loaded.labels)
        save(with_legend(overlay(found.image, found.classes, loaded.labels), covered, loaded.labels), drawn)
        save_label_map(found.classes, loaded.labels, labels)
        width, height = found.image.size
        entry = {"image": str(found.path), "width": width, "height": height, "drawn": str(drawn)}
        written.append({**entry, "labels": str(labels), "classes": covered})
        table.add_row(terminal.plain(found.path), _largest(covered), terminal.plain(drawn))
    if written:
        terminal.show(table)
    weights = {"file": str(arguments.weights), "segmenter": loaded.metadata["architecture"], **loaded.labels.tree()}
    numbers = arguments.output / "segmentation.json"
    write_json(numbers, {"weights": weights, "images": written, "failures": failures})
    terminal.show(f"Saved: {numbers}")
    return 0 if not failures else 1 if written else 2


def _largest(covered: Mapping[str, float]) -> Text:
    """The classes that cover most."""
    shown = [f"{name} {100 * part:.0f} %" for name, part in list(covered.items())[:_NAMED]]
    return terminal.plain(", ".join([*shown, *(["..."] if len(covered) > _NAMED else [])]))
