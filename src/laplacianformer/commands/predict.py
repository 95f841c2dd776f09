"""`laplacianformer predict`: the most probable classes of images or sequences, as a table or as JSON."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laplacianformer._util.errors import InputError
from laplacianformer.commands import options, predict_sequences, ranked, terminal

if TYPE_CHECKING:
    from laplacianformer.classification._inference import Prediction
    from laplacianformer.weights import Weights

SUMMARY = "classify images, texts or ListOps expressions"
DESCRIPTION = (
    "Prints the most probable classes of each image. Images are rotated as their EXIF data says, transparency is put "
    "on white, an animation is read as its first frame, and 16 bits are scaled to 8. With weights of a sequence "
    "encoder, give what it was trained on instead: text files (two for each pair of retrieval), images, or ListOps "
    "expressions, each as one argument or as a line of a file."
)
EPILOG = """examples:
  laplacianformer predict photo.png
  laplacianformer predict holiday/ 'scans/**/*.tif' --top 5
  laplacianformer predict --weights runs/demo/model.safetensors --json digits/ > digits.json
  laplacianformer predict photo.png --attention attention.png --query 0.3,0.5
  laplacianformer predict --weights runs/lra-text/model.safetensors review.txt
  laplacianformer predict --weights runs/lra-listops/model.safetensors '[MAX 4 3 [MIN 2 3 ] 1 ]'

exit code: 0; 1 if some images could not be read (each is named, the others are
printed); 2 if none could, or if something else in the input can't be used"""
MOST_DRAWN = 12  # rows of the figure of attention


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_images(parser)
    options.add_weights(parser)
    parser.add_argument(
        "--top", type=options.positive, default=3, metavar="K", help="classes per image (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON to stdout, and nothing else")
    parser.add_argument(
        "--attention",
        type=Path,
        metavar="OUT.png",
        help=f"draw what one token attends to in the last layer of each stage, for up to {MOST_DRAWN} images",
    )
    parser.add_argument(
        "--query",
        type=options.point,
        default=(0.5, 0.5),
        metavar="X,Y",
        help="the token of --attention: from 0,0 (left, top) to 1,1 (right, bottom) (default: 0.5,0.5)",
    )
    options.add_device(parser)
    options.add_precision(parser)


def run(arguments: argparse.Namespace) -> int:
    """The exit code is 0, 1 if some images failed, 2 if all did."""
    tasks = {"classification": _predict_images, "sequences": predict_sequences.predict}
    _, predict = options.for_task(arguments.weights, tasks)
    return predict(arguments)


def _predict_images(arguments: argparse.Namespace) -> int:
    from laplacianformer import plots
    from laplacianformer._util.files import check_file
    from laplacianformer.classification._inference import predict
    from laplacianformer.weights import describe

    if arguments.attention is not None:
        plots.require_matplotlib()
        check_file(arguments.attention)
    loaded = options.load_classifier(arguments.weights)
    keep = 0 if arguments.attention is None else MOST_DRAWN
    found = predict(loaded, arguments.images, top=arguments.top, device=arguments.device, keep_inputs=keep)
    with options.computing(arguments):
        predictions = list(found)
    results = [ranked.Ranked(str(one.path), str(one.path), one.ranking, one.failure) for one in predictions]
    code = ranked.show("image", results, describe(loaded), _described(loaded), as_json=arguments.json)
    if arguments.attention is not None:
        _draw_attention(loaded, predictions, arguments.query, arguments.attention)
    return code


def _draw_attention(
    loaded: "Weights", predictions: Sequence["Prediction"], point: tuple[float, float], output: Path
) -> None:
    from laplacianformer import plots
    from laplacianformer.classification._inference import attention_rows

    rows = attention_rows(loaded, predictions, point)
    if not rows:
        raise InputError(f"no image could be read, so {output} was not drawn")
    plots.draw_attention(rows, output)
    readable = sum(not prediction.failure for prediction in predictions)
    terminal.note(
        f"Attention: {output}" + (f" (the first {len(rows)} of {readable} images)" if readable > len(rows) else "")
    )


def _described(loaded: "Weights") -> dict[str, Any]:
    from laplacianformer import assets
    from laplacianformer.weights._description import metrics

    return {
        "file": str(loaded.path),
        "shipped": loaded.path == assets.PATH,
        "architecture": loaded.metadata["architecture"],
        "classes": loaded.classes,
        "metrics": metrics(loaded),
    }
