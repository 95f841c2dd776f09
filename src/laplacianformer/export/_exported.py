"""One call for every file format: the bytes of the file, and a function that runs them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from laplacianformer._util.errors import InputError
from laplacianformer.export._check import check_finite
from laplacianformer.export._int8_layers import to_int8
from laplacianformer.export._onnx_library import onnx_library
from laplacianformer.export._trace import ExportPrecision, exportable, only_size
from laplacianformer.weights import Weights

Format = Literal["onnx", "pt2"]
# The largest difference of an output over the largest output that rounding explains.
TOLERANCES: dict[ExportPrecision, float] = {"float32": 1e-4, "bfloat16": 0.1, "int8": 0.2}


@dataclass(frozen=True)
class Exported:
    """A file as bytes, and what it computes: images (batch, channels, height, width) to logits."""

    file: bytes
    run: Callable[[Tensor], Tensor]


def export_model(
    loaded: Weights,
    format: Format,
    *,
    precision: ExportPrecision = "float32",
    size: tuple[int, int] | None = None,
    calibration: Iterable[Tensor] = (),
    kernels: bool = False,
) -> Exported:
    """Export a classifier of this package, or one that it converted.

    Args:
        format: "onnx", or "pt2" for a compiled package of AOTInductor.
        precision: of linear layers and convolutions, "bfloat16" for pt2 alone; with ONNX, "int8" is for linear layers.
            A pt2 package in another than float32 needs a size.
        size: the only height and width that the file takes (pt2); None for any, or for the one that the model takes
            (a vision transformer).
        calibration: batches of images, as the model takes them, that show which numbers its layers are given (pt2 with
            "int8"); see `calibration_images`.
        kernels: with ONNX, the attention of each layer as one node, which onnxruntime computes with `onnx_library`.
    """
    if kernels and format != "onnx":
        raise InputError(f"the C++ kernels as operators are for onnx, got {format}")
    model, size = exportable(loaded.model), only_size(loaded, size)
    check_finite(loaded.path, model, *loaded.input["size"])
    if format == "pt2":
        from laplacianformer.export._aot_inductor import pt2_runner, to_pt2

        if precision != "float32" and size is None:
            raise InputError(f"a package in {precision} is for one image size: give --size HEIGHT WIDTH")
        if precision == "int8":
            model = to_int8(model, calibration)
        file = to_pt2(model, loaded.metadata, size, precision)
        return Exported(file, pt2_runner(file))
    if precision == "bfloat16":
        raise InputError("bfloat16 is for pt2 packages, got onnx: onnxruntime has few operators for it on CPUs")
    try:
        from laplacianformer.export._int8 import quantised
        from laplacianformer.export._onnx_model import onnx_runner, to_onnx
    except ImportError as error:
        raise InputError(f"ONNX needs more packages ({error}): pip install 'laplacianformer[export]'") from None
    library = onnx_library() if kernels else None
    file = to_onnx(model, loaded.metadata, size, kernels=kernels)
    file = quantised(file) if precision == "int8" else file
    return Exported(file, onnx_runner(file, library))


def tolerance(precision: ExportPrecision) -> float:
    """How far an export may differ from the model: see `differences`."""
    return TOLERANCES[precision]
