"""A detector as ONNX, and how far what was written is from it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from laplacianformer._util.errors import InputError
from laplacianformer.detection import DetectorWeights
from laplacianformer.detection._find import find_objects
from laplacianformer.export._check import Difference, relative_difference
from laplacianformer.model import LaplacianFormer

DetectorRunner = Callable[[Tensor], dict[str, Tensor]]

# Height and width of random pictures, in the shorter side that the detector makes of them.
_SHAPES = ((1.0, 1.3), (0.61, 0.47), (0.5, 1.9))
_SAME = 0.99  # overlap of two boxes that are the same object, over their union


@dataclass(frozen=True)
class ExportedDetector:
    """A file as bytes, and what it computes for a picture (3, height, width) from 0 to 1: boxes, labels, scores, masks
    if the detector has them, and `logits` and `deltas`, what its heads give for every anchor, which the file leaves
    out."""

    file: bytes
    run: DetectorRunner


@dataclass(frozen=True)
class DetectorDifference(Difference):
    """The difference is that of the outputs for every anchor. `objects` is how many the detector finds in a random
    picture, `same` how many of them the export finds, too."""

    objects: int
    same: int


def export_detector(loaded: DetectorWeights) -> ExportedDetector:
    """ONNX for every height and width: a picture (3, height, width) from 0 to 1 to the objects in pixels of it.
    Resizing, normalisation, padding and the suppression of boxes that overlap are in the graph."""
    model: Any = loaded.model
    if not isinstance(model.backbone.maps.model, LaplacianFormer):
        backbone = model.arguments["backbone"]
        raise InputError(f"a detector on {backbone} can't be exported: expected a LaplacianFormer")
    try:
        find_objects(model, _picture(torch.Generator().manual_seed(0), 64, 64))
    except InputError as error:
        raise InputError(f"{loaded.path}: {error}") from None
    try:
        from laplacianformer.export._onnx_detector import detector_to_onnx
    except ImportError as error:
        raise InputError(f"ONNX needs more packages ({error}): pip install 'laplacianformer[export]'") from None
    return ExportedDetector(*detector_to_onnx(model, loaded.metadata))


@torch.inference_mode()
def detector_differences(loaded: DetectorWeights, run: DetectorRunner) -> Iterator[DetectorDifference]:
    """How far what `run` computes is from the detector, for random pictures of several shapes."""
    model: Any = loaded.model
    generator, side = torch.Generator().manual_seed(0), min(256, model.transform.min_size[-1])
    for rows, columns in _SHAPES:
        picture = _picture(generator, int(rows * side), int(columns * side))
        expected, outputs = _with_outputs(model, picture)
        found = run(picture / 255)
        relative = max(relative_difference(found[name], outputs[name]) for name in outputs)
        yield DetectorDifference(tuple(picture.shape), relative, len(expected["boxes"]), _same(expected, found))


def _picture(generator: torch.Generator, height: int, width: int) -> Tensor:
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=generator)


def _with_outputs(model: Any, picture: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a detector finds, and what its heads give for every anchor on the way."""
    outputs: dict[str, Tensor] = {}

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, dict):  # RetinaNet
            outputs.update(logits=output["cls_logits"][0], deltas=output["bbox_regression"][0])
        else:
            logits, deltas = (
                [_flat(each, numbers) for each in maps] for maps, numbers in zip(output, (1, 4), strict=True)
            )
            outputs.update(logits=torch.cat(logits)[:, 0], deltas=torch.cat(deltas))

    hook = (model.rpn.head if model.detector == "mask_rcnn" else model.head).register_forward_hook(keep)
    try:
        found = find_objects(model, picture)
    finally:
        hook.remove()
    return found, outputs


def _flat(outputs: Tensor, numbers: int) -> Tensor:
    """(1, anchors * numbers, H, W) to (H * W * anchors, numbers)."""
    return outputs[0].permute(1, 2, 0).reshape(-1, numbers)


def _same(expected: dict[str, Tensor], found: dict[str, Tensor]) -> int:
    """How many of the expected objects are among the found: the same class, and nearly the same box and score."""
    same = box_iou(expected["boxes"], found["boxes"]) >= _SAME
    same &= expected["labels"][:, None] == found["labels"]
    same &= (expected["scores"][:, None] - found["scores"]).abs() <= 1e-3
    return int(same.any(1).sum())
