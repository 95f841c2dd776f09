"""COCO's numbers: average precision and recall of boxes and masks, by faster-coco-eval."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from laplacianformer._util.errors import InputError
from laplacianformer.detection._coco import CocoImages
from laplacianformer.detection._find import Prediction
from laplacianformer.detection._masks import encode

Kind = Literal["bbox", "segm"]
KINDS: dict[Kind, str] = {"bbox": "box", "segm": "mask"}
# As COCO defines them: AP over overlaps of 0.50 to 0.95, at 0.50 and 0.75, of objects below 32 x 32 pixels, below
# 96 x 96, above; AR with at most 1, 10, 100 detections per image, and of small, medium, large objects.
NUMBERS = (
    *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
    *("AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large"),
)
# The twelve numbers for "box" and, with masks, "mask", in percent; None: there are no such objects.
Scores = dict[str, dict[str, float | None]]


def as_results(images: CocoImages, index: int, found: Prediction) -> list[dict[str, Any]]:
    """Entries of a COCO results file, with the data's own ids."""
    corners = found["boxes"].double()
    boxes = torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).tolist()
    labels, scores = found["labels"].tolist(), found["scores"].tolist()
    results = [
        {
            "image_id": images.entries[index]["id"],
            "category_id": images.category_ids[label - 1],
            "bbox": box,
            "score": score,
        }
        for box, label, score in zip(boxes, labels, scores, strict=True)
    ]
    if "masks" in found:
        for result, mask in zip(results, found["masks"].numpy(), strict=True):
            result["segmentation"] = encode(mask)
    return results


def coco_scores(images: CocoImages, results: Iterable[dict[str, Any]], unreadable: Iterable[int] = ()) -> Scores:
    """The twelve numbers of boxes and, where the data has masks, of masks. Unreadable images don't count.

    Args:
        results: of all images, as `as_results` returns them.
        unreadable: indices of images that could not be read.
    """
    left_out = set(unreadable)
    counted = [entry["id"] for index, entry in enumerate(images.entries) if index not in left_out]
    listed = list(results)
    kinds: list[Kind] = ["bbox", "segm"] if images.masks else ["bbox"]
    return {KINDS[kind]: _numbers(images, listed, kind, counted) for kind in kinds}


def _numbers(images: CocoImages, results: list[dict[str, Any]], kind: Kind, counted: list[int]) -> dict[str, Any]:
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError:
        raise InputError("evaluation needs faster-coco-eval: pip install 'laplacianformer[train]'") from None
    truth = COCO(images.tree, print_function=_silent)
    # COCO takes the size of an object from its box where it has one, and from its mask otherwise.
    hidden = "segmentation" if kind == "bbox" else "bbox"
    listed = [{key: value for key, value in result.items() if key != hidden} for result in results]
    found = truth.loadRes(listed) if listed else COCO({**images.tree, "annotations": []}, print_function=_silent)
    evaluation = COCOeval_faster(truth, found, kind, print_function=_silent)
    evaluation.params.imgIds = counted
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    values = np.asarray(evaluation.stats[: len(NUMBERS)], dtype=np.float64).tolist()
    return {name: None if value < 0 else 100 * value for name, value in zip(NUMBERS, values, strict=True)}


def _silent(*_: Any, **__: Any) -> None:
    """Takes the place of print."""


def rows(scores: Scores) -> tuple[tuple[str, ...], ...]:
    """One row per number, for people: its name, its value for boxes, its value for masks."""
    return tuple((name.replace("_", " "), *(percent(numbers[name]) for numbers in scores.values())) for name in NUMBERS)


def percent(value: float | None) -> str:
    """One decimal place, or a dash for what is not defined."""
    return "-" if value is None else f"{value:.1f}"


def flat(scores: Scores, names: Sequence[str]) -> dict[str, float]:
    """As columns: box_ap, box_ap50, ...; a number that is not defined counts as 0."""
    return {f"{kind}_{name.lower()}": numbers[name] or 0.0 for kind, numbers in scores.items() for name in names}
