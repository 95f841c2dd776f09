"""`laplacianformer export`: a file for use without this package, kept only if it computes what the model does."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from laplacianformer._util.errors import InputError
from laplacianformer._util.limits import MOST_SIDE
from laplacianformer.commands import options, terminal

if TYPE_CHECKING:
    from torch import Tensor

    from laplacianformer.export._check import Difference
    from laplacianformer.weights import Weights

SUMMARY = "write a model to a file that runs without this package"
DESCRIPTION = (
    "Writes ONNX, or a compiled package of AOTInductor, for any batch, height and width. What was written is compared "
    "with the model at several sizes, and is kept only if it computes the same. Or writes a folder with weights, "
    "config and model card, which timm loads. Segmenters and detectors are written as ONNX."
)
EPILOG = """examples:
  laplacianformer export --weights model.safetensors --format onnx model.onnx
  laplacianformer export --weights model.safetensors --format onnx --kernels fast.onnx
  laplacianformer export --weights model.safetensors --format onnx --precision int8 --data cifar10/ small.onnx
  laplacianformer export --weights model.safetensors --format pt2 --size 224 224 model.pt2
  laplacianformer export --format pt2 --size 32 32 --precision int8 --data cifar10/ fast.pt2
  laplacianformer export --weights model.safetensors --format hf my-model
  laplacianformer export --weights runs/camvid/model.safetensors --format onnx streets.onnx
  laplacianformer export --weights runs/shapes-maskrcnn/model.safetensors --format onnx detector.onnx"""

# The formats that a precision other than float32 is for.
PRECISIONS = {"bfloat16": ("pt2",), "int8": ("onnx", "pt2")}

# The fraction of a detector's objects that its export must find: where two scores are nearly equal, rounding chooses.
SAME_OBJECTS = 0.95


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_weights(parser)
    parser.add_argument("--format", required=True, choices=("onnx", "pt2", "hf"), help="what to write")
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16", "int8"),
        default="float32",
        help="numbers in linear layers and convolutions: bfloat16, for CPUs that have instructions for it (pt2, needs "
        "--size); int8, for x86 CPUs, about twice as fast as float32 (pt2, needs --size and --data), or in linear "
        "layers alone, for a smaller file (onnx) (default: %(default)s)",
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="attention by the C++ kernels of this package: the file needs its library in onnxruntime, and is faster "
        "(onnx; default: plain ONNX, for every runtime)",
    )
    parser.add_argument("--int8", action="store_true", help="(replaced by --precision int8)")
    parser.add_argument(
        "--size",
        type=int,
        nargs=2,
        metavar=("HEIGHT", "WIDTH"),
        help="compile for images of this size alone: smaller and faster (pt2; default: any size)",
    )
    parser.add_argument(
        "--data",
        metavar="[READER:]DIR",
        help="labelled images, to measure how much the accuracy changes, and to calibrate --precision int8 (pt2)",
    )
    options.add_allow_pipes(parser)
    parser.add_argument(
        "output", type=Path, metavar="OUT", help="a file that ends with .onnx or .pt2, or a new folder (hf)"
    )


def run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    tasks = {"classification": _write_classifier, "segmentation": _write_segmenter, "detection": _write_detector}
    _, write = options.for_task(arguments.weights, tasks)
    write(arguments)


def _write_classifier(arguments: argparse.Namespace) -> None:
    if arguments.format != "hf":
        _write_file(arguments)
        return
    from laplacianformer.export._card import write_folder

    write_folder(options.load_classifier(arguments.weights), arguments.output)
    terminal.show(f"Saved: {arguments.output}: config.json, model.safetensors, README.md")


def _write_segmenter(arguments: argparse.Namespace) -> None:
    from laplacianformer._util import files
    from laplacianformer.export import export_segmenter, segmenter_differences
    from laplacianformer.segmentation import load_segmenter

    _check_onnx_alone(arguments, "a segmenter")
    files.check_file(arguments.output)
    loaded = load_segmenter(arguments.weights)
    written = export_segmenter(loaded)
    _check_differences(arguments, list(segmenter_differences(loaded, written.run)))
    _save(arguments, written.file)


def _write_detector(arguments: argparse.Namespace) -> None:
    from laplacianformer._util import files
    from laplacianformer.detection import load_detector
    from laplacianformer.export import detector_differences, export_detector

    _check_onnx_alone(arguments, "a detector")
    files.check_file(arguments.output)
    loaded = load_detector(arguments.weights)
    written = export_detector(loaded)
    measured = list(detector_differences(loaded, written.run))
    _check_differences(arguments, measured)
    objects, same = sum(each.objects for each in measured), sum(each.same for each in measured)
    terminal.show(f"objects that the model finds in these images: {objects}, of which the export finds {same}")
    if same < SAME_OBJECTS * objects:
        raise InputError(f"{arguments.output} was not written: it does not find the objects that the model finds")
    _save(arguments, written.file)


def _check_onnx_alone(arguments: argparse.Namespace, what: str) -> None:
    plain = arguments.precision == "float32" and arguments.data is None and not arguments.kernels
    if arguments.format != "onnx" or not plain:
        raise InputError(f"{what} is exported with --format onnx, in float32, without --data and --kernels")


def _write_file(arguments: argparse.Namespace) -> None:
    from laplacianformer._util import files
    from laplacianformer.export import _exported as exported
    from laplacianformer.export import onnx_library
    from laplacianformer.export._check import compare_accuracy, differences

    files.check_file(arguments.output)
    loaded = options.load_classifier(arguments.weights)
    if arguments.data is not None:
        _check_data(arguments, loaded)
    size = arguments.size and tuple(arguments.size)
    written = exported.export_model(
        loaded,
        arguments.format,
        precision=arguments.precision,
        size=size,
        calibration=_calibration(arguments, loaded),
        kernels=arguments.kernels,
    )
    _check_differences(arguments, list(differences(loaded, written.run, size)))
    if arguments.data is not None:
        change = compare_accuracy(loaded, written.run, arguments.data, allow_pipes=arguments.allow_pipes)
        points = 100 * (change.export - change.model)
        terminal.show(
            f"top-1 of the model: {100 * change.model:.2f} % of {change.images:,} images",
            f"top-1 of the export: {100 * change.export:.2f} %, a change of {points:+.2f} points",
        )
    _save(arguments, written.file)
    if arguments.kernels:
        terminal.show(f"It runs in onnxruntime with the library {onnx_library()}")


def _check_differences(arguments: argparse.Namespace, measured: Sequence["Difference"]) -> None:
    """Show how far an export is from its model, and raise if it is too far."""
    from laplacianformer.export import tolerance

    allowed = tolerance(arguments.precision)
    terminal.show(_table(measured, allowed))
    if not all(difference.relative <= allowed for difference in measured):  # NaN is not
        largest = max(difference.relative for difference in measured)
        raise InputError(
            f"{arguments.output} was not written: it differs by {largest:.1e} from the model, more than {allowed}"
        )


def _save(arguments: argparse.Namespace, data: bytes) -> None:
    from laplacianformer._util import files

    with files.replacing(arguments.output) as file:
        file.write(data)
    terminal.show(f"Saved: {arguments.output} ({len(data) / 1e6:.1f} MB)")


def _calibration(arguments: argparse.Namespace, loaded: "Weights") -> "Iterable[Tensor]":
    from laplacianformer.export._int8_layers import calibration_images

    if arguments.precision != "int8" or arguments.format != "pt2":
        return ()
    return calibration_images(loaded, arguments.data, allow_pipes=arguments.allow_pipes)


def _check(arguments: argparse.Namespace) -> None:
    """Options that don't go together."""
    form, size = arguments.format, arguments.size
    if arguments.int8:
        raise InputError("--int8 is gone: give --precision int8")
    if arguments.precision != "float32" and form not in PRECISIONS[arguments.precision]:
        formats = " and ".join(PRECISIONS[arguments.precision])
        raise InputError(f"--precision {arguments.precision} is for --format {formats}, got --format {form}")
    if arguments.precision == "int8" and form == "pt2" and arguments.data is None:
        raise InputError("--format pt2 --precision int8 needs images to calibrate with: give --data DIR")
    if arguments.kernels and form != "onnx":
        raise InputError(f"--kernels is for --format onnx, got --format {form}")
    if size and form != "pt2":
        raise InputError(f"--size is for --format pt2, got --format {form}, which takes images of every size")
    if size and not 1 <= min(size) <= max(size) <= MOST_SIDE:
        raise InputError(
            f"--size is a height and a width of at least 1 pixel and at most {MOST_SIDE}, got {size[0]} {size[1]}"
        )
    if form == "hf" and arguments.data is not None:
        raise InputError("--data is for files that may compute something else: --format hf keeps the weights")
    if form != "hf" and arguments.output.suffix != f".{form}":
        raise InputError(f"expected a file name that ends with .{form}, got {arguments.output}")


def _check_data(arguments: argparse.Namespace, loaded: "Weights") -> None:
    """Raise now, not after minutes of compiling."""
    from laplacianformer.classification._evaluation import open_batches

    expected = tuple(loaded.input["size"][1:])
    if arguments.size and tuple(arguments.size) != expected:
        raise InputError(
            f"--data takes images of {expected}, height and width, as in training: --size says {tuple(arguments.size)}"
        )
    open_batches(loaded, arguments.data, allow_pipes=arguments.allow_pipes)


def _table(measured: Sequence["Difference"], tolerance: float) -> Table:
    table = Table(title="Against the model in PyTorch, on random images", caption=f"allowed: {tolerance:.0e}")
    table.add_column("shape of the images")
    table.add_column("largest difference / largest output", justify="right")
    for difference in measured:
        table.add_row(" x ".join(str(length) for length in difference.shape), f"{difference.relative:.1e}")
    return table
