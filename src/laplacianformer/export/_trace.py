"""The graph of a model for any batch, and for any image size or a single one."""

from collections.abc import Collection
from typing import Any, Literal

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from laplacianformer._util.errors import InputError
from laplacianformer._util.limits import MOST_SIDE
from laplacianformer.model import LaplacianFormer
from laplacianformer.ops._tables import tables_made_once
from laplacianformer.segmentation import Segmenter
from laplacianformer.weights import Weights

ExportPrecision = Literal["float32", "bfloat16", "int8"]


class _Traced(nn.Module):
    def __init__(self, model: nn.Module, autocast: bool) -> None:
        super().__init__()
        self.model, self.autocast = model, autocast

    def forward(self, images: Tensor) -> Tensor:
        with tables_made_once():
            if not self.autocast:
                return self.model(images)
            with torch.autocast("cpu", torch.bfloat16):
                return self.model(images).float()


@torch.no_grad()
def trace(model: nn.Module, size: tuple[int, int] | None = None, *, autocast: bool = False) -> ExportedProgram:
    """The graph of a model in evaluation mode, of PyTorch's operators and this package's own.

    For images of any size, or of this height and width alone; with autocast, in bfloat16 but for images and logits.
    """
    least = 1 if size else least_side(model)
    height, width = size or (3 * least, 4 * least)
    example = torch.zeros(2, channels(model), height, width)
    side = Dim.AUTO(min=least)
    dynamic = {0: Dim.AUTO} if size else {0: Dim.AUTO, 2: side, 3: side}
    return torch.export.export(_Traced(model, autocast).eval(), (example,), dynamic_shapes=(dynamic,))


@torch.no_grad()
def trace_detector(graph: nn.Module, multiple: int) -> ExportedProgram:
    """The graph of a `DetectorGraph` for images of every height and width that are multiples of `multiple`."""
    height, width = 14 * multiple, 18 * multiple  # at least two tokens per side on every level
    example = torch.zeros(1, 3, height, width), torch.tensor((height, width)), torch.arange(300.0), torch.arange(400.0)
    rows, columns = (multiple * Dim(name, min=2, max=MOST_SIDE) for name in ("rows", "columns"))
    length = {0: Dim.AUTO}
    return torch.export.export(graph.eval(), example, dynamic_shapes=({2: rows, 3: columns}, None, length, length))


def channels(model: Any) -> int:
    """Of the images that the model takes."""
    model = _backbone(model)
    if isinstance(model, LaplacianFormer):
        return model.in_chans
    first: int = model.get_submodule(model.pretrained_cfg["first_conv"]).in_channels
    return first


def least_side(model: Any) -> int:
    """The side in pixels with two tokens per side in the last stage: torch.export takes a length of 1 as constant."""
    reduction: int = _backbone(model).feature_info[-1]["reduction"]
    return reduction + 1


def _backbone(model: Any) -> Any:
    """What has the stages: the model itself, or that inside a segmenter."""
    return model.maps.model if isinstance(model, Segmenter) else model


def exportable(model: nn.Module) -> nn.Module:
    """The model, if it is a classifier of this package, or was converted by it; otherwise an InputError."""
    if not isinstance(model, LaplacianFormer) and not hasattr(model, "conversion"):
        raise InputError(
            f"a {type(model).__name__} can't be exported: expected a model of this package, or a converted one"
        )
    return model


def only_size(loaded: Weights, wanted: tuple[int, int] | None = None) -> tuple[int, int] | None:
    """The height and width to export for: the wanted ones, or those of a vision transformer, whose positions are those
    of one size; None: any."""
    size: tuple[int, int] = tuple(loaded.input["size"][1:])
    if not isinstance(loaded.model, VisionTransformer):
        return wanted
    if wanted not in (None, size):
        raise InputError(f"{loaded.path} takes images of {size}, height and width, alone: --size says {wanted}")
    return size


def check_operators(program: ExportedProgram, known: Collection[object]) -> None:
    """Raise an InputError if a graph has operators of this package that are not among the known."""
    called: set[Any] = {node.target for node in program.graph.nodes}
    unknown = {
        operator.name() for operator in called - set(known) if getattr(operator, "namespace", None) == "laplacianformer"
    }
    if unknown:
        raise InputError(
            f"{', '.join(sorted(unknown))} can't be exported: expected a model with the solver newton_schulz "
            "and without full whitening"
        )
