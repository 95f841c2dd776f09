"""`laplacianformer export`: a file for places where this package is not, kept if it computes what the model does."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from laplacianformer import weights
from laplacianformer._util import files
from laplacianformer._util.errors import InputError
from laplacianformer.classification import evaluation as evaluate
from laplacianformer.export.trace import exportable, least_side
from laplacianformer.weights import Weights

Runner = Callable[[Tensor], Tensor]
Size = tuple[int, int]  # height, width

# The largest difference of an output over the largest output: rounding of float32, and of 8-bit integers.
TOLERANCE = 1e-4
INT8_TOLERANCE = 0.2


def run(*, file: Path | None, form: str, output: Path, int8: bool, size: Size | None, data: str | None) -> None:
    """Write the model as `form` ("onnx", "pt2"), print how far it is from the model, and keep it if that is near.

    As "hf": a folder with the weights as they are, and a card.
    """
    if int8 and form != "onnx":
        raise InputError(f"--int8 is for --format onnx, got --format {form}")
    if size and form != "pt2":
        raise InputError(f"--size is for --format pt2, got --format {form}, which takes images of every size")
    if size and min(size) < 1:
        raise InputError(f"--size is a height and a width of at least 1 pixel, got {size[0]} {size[1]}")
    if form == "hf":
        _write_folder(file, output, data)
    else:
        _write_file(file, form, output, int8=int8, size=size, data=data)


def _write_file(file: Path | None, form: str, output: Path, *, int8: bool, size: Size | None, data: str | None) -> None:
    if output.suffix != f".{form}":
        raise InputError(f"expected a file name that ends with .{form}, got {output}")
    files.check_file(output)
    loaded = weights.load_chosen(file)
    if data is not None:
        _check_data(loaded, data, size)
    written, runner = _write(loaded, form, int8=int8, size=size)
    tolerance = INT8_TOLERANCE if int8 else TOLERANCE
    measured = list(differences(loaded, runner, size))
    console = Console()
    console.print(_table(measured, tolerance))
    worst = max(difference for _, difference in measured)
    if not worst <= tolerance:  # not a number is not near
        raise InputError(f"{output} was not written: it differs by {worst:.1e} from the model, more than {tolerance}")
    if data is not None:
        for line in accuracies(loaded, runner, data):
            console.print(Text(line), soft_wrap=True)
    with files.replacing(output) as opened:
        opened.write(written)
    console.print(Text(f"Saved: {output} ({len(written) / 1e6:.1f} MB)"), soft_wrap=True)


def _check_data(loaded: Weights, data: str, size: Size | None) -> None:
    """Told now, not after minutes of compiling."""
    expected = tuple(loaded.input["size"][1:])
    if size and size != expected:
        raise InputError(f"--data takes pictures of {expected}, height and width, as trained on: --size says {size}")
    evaluate.open_batches(loaded, data)


def _write_folder(file: Path | None, output: Path, data: str | None) -> None:
    from laplacianformer.export.card import write_folder

    if data is not None:
        raise InputError("--data is for files that may compute something else: --format hf keeps the weights")
    write_folder(weights.load_chosen(file), output)
    Console().print(Text(f"Saved: {output}: config.json, model.safetensors, README.md"), soft_wrap=True)


def _write(loaded: Weights, form: str, *, int8: bool, size: Size | None) -> tuple[bytes, Runner]:
    if form == "pt2":
        from laplacianformer.export.aot_inductor import pt2_runner, to_pt2

        written = to_pt2(exportable(loaded.model), loaded.metadata, size)
        return written, pt2_runner(written)
    try:
        from laplacianformer.export.int8 import quantised
        from laplacianformer.export.onnx_model import onnx_runner, to_onnx
    except ImportError as error:
        raise InputError(f"ONNX needs more packages ({error}): pip install 'laplacianformer[export]'") from None
    written = to_onnx(exportable(loaded.model), loaded.metadata)
    written = quantised(written) if int8 else written
    return written, onnx_runner(written)


@torch.inference_mode()
def differences(loaded: Weights, run: Runner, size: Size | None = None) -> Iterator[tuple[tuple[int, ...], float]]:
    """For random images of several shapes: the shape, and the largest difference over the largest output.

    With `size`, the one height and width that `run` takes, only batches differ.
    """
    channels, height, width = loaded.input["size"]
    generator, least = torch.Generator().manual_seed(0), least_side(exportable(loaded.model))
    for batch, rows, columns in ((1, height, width), (3, height + 9, width // 2 + 1), (2, 7 * height // 4, width)):
        rows, columns = size or (max(rows, least), max(columns, least))
        images = torch.randn(batch, channels, rows, columns, generator=generator)
        expected = loaded.model(images)
        yield tuple(images.shape), float((run(images) - expected).abs().max() / expected.abs().max())


def accuracies(loaded: Weights, run: Runner, data: str) -> Iterator[str]:
    """Top-1 on labelled pictures, as `laplacianformer eval` measures it, of the model and of what was written."""
    twin = replace(loaded, model=_Run(run))
    before, after = (evaluate.evaluate(each, evaluate.open_batches(loaded, data)) for each in (loaded, twin))
    yield f"top-1 of the model: {100 * before.top1:.2f} % of {before.images:,} pictures"
    yield f"top-1 of the export: {100 * after.top1:.2f} %, a change of {100 * (after.top1 - before.top1):+.2f} points"


class _Run(nn.Module):
    def __init__(self, run: Runner) -> None:
        super().__init__()
        self.run = run

    def forward(self, images: Tensor) -> Tensor:
        return self.run(images)


def _table(measured: list[tuple[tuple[int, ...], float]], tolerance: float) -> Table:
    table = Table(title="Against the model in PyTorch, on random images", caption=f"allowed: {tolerance:.0e}")
    table.add_column("batch, channels, height, width")
    table.add_column("largest difference / largest output", justify="right")
    for shape, difference in measured:
        table.add_row(" x ".join(str(length) for length in shape), f"{difference:.1e}")
    return table
