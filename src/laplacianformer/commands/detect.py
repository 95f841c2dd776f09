"""`laplacianformer detect`: objects drawn on images, and as JSON."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from laplacianformer.commands import options, terminal

if TYPE_CHECKING:
    from laplacianformer.detection._inference import Detection, Object

SUMMARY = "find objects in images"
DESCRIPTION = (
    "Draws boxes, masks, labels and scores on a copy of each image, and writes detections.json with boxes in pixels "
    "and masks in COCO's run-length encoding."
)
EPILOG = """examples:
  laplacianformer detect --weights runs/shapes-maskrcnn/model.safetensors images/
  laplacianformer detect --weights detector.safetensors street.jpg 'holiday/*.jpg' --threshold 0.7 --output found

exit code: 0; 1 if some images could not be read (each is named, the others are
drawn); 2 if none could, or if something else in the input can't be used"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_images(parser)
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE", help="weights of a detector")
    parser.add_argument(
        "--threshold",
        type=options.fraction,
        default=0.5,
        metavar="SCORE",
        help="lowest score that is drawn and written (default: %(default)s)",
    )
    options.add_output(parser, Path("runs/detect"))
    options.add_device(parser)
    options.add_precision(parser)


def run(arguments: argparse.Namespace) -> int:
    """The exit code is 0, 1 if some images failed, 2 if all did."""
    from laplacianformer._util.files import UnusedPaths, write_json
    from laplacianformer.data import _images as images
    from laplacianformer.detection._inference import detect
    from laplacianformer.detection._pictures import Drawn, with_objects
    from laplacianformer.detection._weights import load_detector
    from laplacianformer.plots._pillow import save

    loaded = load_detector(arguments.weights)
    written, failures = [], []
    unused = UnusedPaths(arguments.output, [path for path, _ in images.find(arguments.images, warn=False)])
    table = Table()
    for title in ("image", "objects", "drawn in"):
        table.add_column(title, overflow="fold")
    with options.computing(arguments):
        for found in detect(loaded, arguments.images, threshold=arguments.threshold, device=arguments.device):
            if found.image is None:
                failures.append({"image": str(found.path), "reason": found.failure})
                terminal.warn(f"{found.path}: {found.failure}")
                continue
            output = unused.next(found.path.stem, ".png")
            drawn = [Drawn(each.box, f"{each.name} {100 * each.score:.0f} %", each.mask) for each in found.objects]
            save(with_objects(found.image, drawn), output)
            written.append(_as_json(found, output))
            table.add_row(terminal.plain(found.path), _counts(found.objects), terminal.plain(output))
    if written:
        terminal.show(table)
    write_json(
        arguments.output / "detections.json",
        {
            "weights": {
                "file": str(arguments.weights),
                "detector": loaded.metadata["architecture"],
                "classes": loaded.classes,
            },
            "threshold": arguments.threshold,
            "images": written,
            "failures": failures,
        },
    )
    terminal.show(f"Saved: {arguments.output / 'detections.json'}")
    return 0 if not failures else 1 if written else 2


def _as_json(found: "Detection", drawn: Path) -> dict[str, Any]:
    from laplacianformer.detection._masks import encode

    assert found.image is not None
    return {
        "image": str(found.path),
        "width": found.image.width,
        "height": found.image.height,
        "drawn": str(drawn),
        "objects": [
            {
                "class": each.name,
                "category_id": each.category_id,
                "score": round(each.score, 4),
                "box": each.box,
                **({"mask": encode(each.mask)} if each.mask is not None else {}),
            }
            for each in found.objects
        ],
    }


def _counts(objects: Sequence["Object"]) -> Text:
    """How many objects of each class."""
    names = [each.name for each in objects]
    return terminal.plain(", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "none")
