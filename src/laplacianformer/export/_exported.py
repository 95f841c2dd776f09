"""One call for every file format: the bytes of the file, and a function that runs them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from laplacianformer._util.errors import InputError
from laplacianformer.export._trace import exportable, only_size
from laplacianformer.weights import Weights

Format = Literal["onnx", "pt2"]

# The largest difference of an output over the largest output: rounding of float32, and of 8-bit integers.
TOLERANCE = 1e-4
INT8_TOLERANCE = 0.2


@dataclass(frozen=True)
class Exported:
    """A file as bytes, and what it computes: images (batch, channels, height, width) to logits."""

    file: bytes
    run: Callable[[Tensor], Tensor]


def export_model(
    loaded: Weights, format: Format, *, int8: bool = False, size: tuple[int, int] | None = None
) -> Exported:
    """Export a classifier of this package, or one that it converted.

    Args:
        format: "onnx", or "pt2" for a compiled package of AOTInductor.
        int8: 8-bit weights in the linear layers (ONNX).
        size: the only height and width that the file takes (pt2); None for any, or for the one that the model takes
            (a vision transformer).
    """
    model, size = exportable(loaded.model), only_size(loaded, size)
    if format == "pt2":
        from laplacianformer.export._aot_inductor import pt2_runner, to_pt2

        file = to_pt2(model, loaded.metadata, size)
        return Exported(file, pt2_runner(file))
    try:
        from laplacianformer.export._int8 import quantised
        from laplacianformer.export._onnx_model import onnx_runner, to_onnx
    except ImportError as error:
        raise InputError(f"ONNX needs more packages ({error}): pip install 'laplacianformer[export]'") from None
    file = to_onnx(model, loaded.metadata, size)
    file = quantised(file) if int8 else file
    return Exported(file, onnx_runner(file))


def tolerance(*, int8: bool) -> float:
    """How far an export may differ from the model: see `differences`."""
    return INT8_TOLERANCE if int8 else TOLERANCE
