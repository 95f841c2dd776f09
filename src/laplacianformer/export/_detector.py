"""A detector as ONNX, and how far what was written is from it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from laplacianformer._util.errors import InputError, about
from laplacianformer.detection import DetectorWeights
from laplacianformer.detection._find import find_objects
from laplacianformer.export._check import Difference, relative_difference
from laplacianformer.model import LaplacianFormer

DetectorRunner = Callable[[Tensor], dict[str, Tensor]]

# Height and width of random pictures, in the shorter side that the detector makes of them.
_SHAPES = ((1.0, 1.3), (0.61, 0.47), (0.5, 1.9))
_SAME = 0.99  # overlap of two boxes or masks of the same object, over their union
_WATCHED = ("transform", "backbone", "head", "rpn.head")


@dataclass(frozen=True)
class ExportedDetector:
    """A file as bytes, and what it computes for a picture (3, height, width) from 0 to 1: boxes, labels, scores, masks
    if the detector has them, and what its heads give, which the file leaves out."""

    file: bytes
    run: DetectorRunner


@dataclass(frozen=True)
class DetectorDifference(Difference):
    """The difference is that of the outputs of the heads. `objects` is how many the detector finds in a random picture,
    `same` how many of them the export finds, too, with the same masks."""

    objects: int
    same: int


def export_detector(loaded: DetectorWeights) -> ExportedDetector:
    """ONNX for every height and width: a picture (3, height, width) from 0 to 1 to the objects in pixels of it.
    Resizing, normalisation, padding and the suppression of boxes that overlap are in the graph."""
    model: Any = loaded.model
    if not isinstance(model.backbone.maps.model, LaplacianFormer):
        backbone = model.arguments["backbone"]
        raise InputError(f"a detector on {backbone} can't be exported: expected a LaplacianFormer")
    with about(loaded.path):
        find_objects(model, _picture(torch.Generator().manual_seed(0), 64, 64))
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
        found = run(picture / 255)
        expected, outputs = _with_heads(model, picture, found)
        relative = max(relative_difference(found[name], values) for name, values in outputs.items() if values.numel())
        yield DetectorDifference(tuple(picture.shape), relative, len(expected["boxes"]), _same(expected, found))


def _picture(generator: torch.Generator, height: int, width: int) -> Tensor:
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=generator)


def _with_heads(
    model: Any, picture: Tensor, given: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a detector finds, and what its heads give: for every anchor and, of Mask R-CNN, for the given proposals and
    boxes of masks, as rounding decides which ones there are."""
    seen: dict[str, Any] = {}

    def keep(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        seen[name] = output

    hooks = [
        module.register_forward_hook(partial(keep, name)) for name, module in model.named_modules() if name in _WATCHED
    ]
    try:
        found = find_objects(model, picture)
    finally:
        for hook in hooks:
            hook.remove()
    if model.detector == "retinanet":
        return found, {"logits": seen["head"]["cls_logits"][0], "deltas": seen["head"]["bbox_regression"][0]}
    logits, deltas = (
        torch.cat([_flat(each, numbers) for each in maps])
        for maps, numbers in zip(seen["rpn.head"], (1, 4), strict=True)
    )
    heads, features, sizes = model.roi_heads, seen["backbone"], seen["transform"][0].image_sizes
    crops = heads.box_roi_pool(features, [given["proposals"]], sizes)
    box_logits, box_deltas = heads.box_predictor(heads.box_head(crops))
    mask_logits = heads.mask_predictor(heads.mask_head(heads.mask_roi_pool(features, [given["mask_boxes"]], sizes)))
    return found, {
        "logits": logits[:, 0],
        "deltas": deltas,
        "box_logits": box_logits,
        "box_deltas": box_deltas,
        "mask_logits": mask_logits,
    }


def _flat(outputs: Tensor, numbers: int) -> Tensor:
    """(1, anchors * numbers, H, W) to (H * W * anchors, numbers)."""
    return outputs[0].permute(1, 2, 0).reshape(-1, numbers)


def _same(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> int:
    """How many of the expected objects are among the found: the same class, and nearly the same box, score and mask."""
    same = box_iou(expected["boxes"], found["boxes"]) >= _SAME
    same &= expected["labels"][:, None] == found["labels"]
    same &= (expected["scores"][:, None] - found["scores"]).abs() <= 1e-3
    if "masks" in expected:
        for one, other in same.nonzero().tolist():
            same[one, other] = _overlap(expected["masks"][one], found["masks"][other]) >= _SAME
    return int(same.any(1).sum())


def _overlap(one: Tensor, other: Tensor) -> float:
    """The intersection of two masks over their union, 1 where both are empty."""
    union = int((one | other).sum())
    return int((one & other).sum()) / union if union else 1.0
