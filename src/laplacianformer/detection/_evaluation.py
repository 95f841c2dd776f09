"""Average precision and speed of a detector on annotated images."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from laplacianformer._util.devices import device_name
from laplacianformer._util.errors import InputError, about
from laplacianformer.detection._batches import HeldOut, held_out_images
from laplacianformer.detection._coco import CocoImages, Split, open_coco
from laplacianformer.detection._find import Prediction, find_objects
from laplacianformer.detection._pictures import Drawn, with_objects
from laplacianformer.detection._recipe import DetectionData
from laplacianformer.detection._scores import Scores, as_results, coco_scores
from laplacianformer.detection._weights import DetectorWeights
from laplacianformer.plots._pillow import draw_sheet
from laplacianformer.training import _recipes as recipes
from laplacianformer.training._recipe import EvaluatedRun

SPLITS: dict[str, Split] = {"train": "train", **dict.fromkeys(("validation", "val", "valid", "eval", "test"), "val")}
EXAMPLES = 5  # images on the sheet
EXAMPLE_HEIGHT = 320  # pixels
EXAMPLE_SCORE = 0.5  # the lowest that is drawn


@dataclass(frozen=True)
class DetectionEvaluation:
    """COCO's numbers. Images that can't be read are only named, and count nowhere else."""

    images: int
    images_per_second: float  # of the detector alone
    scores: Scores
    device: str
    unreadable: list[str]  # path and reason
    examples: list[tuple[Image.Image, Image.Image]]  # the first images, with annotated and with found objects


def open_data(loaded: DetectorWeights, data: str, split: str = "validation") -> CocoImages:
    """`DIR`, a COCO data set, or `shapes`, if its categories are those of the weights."""
    if split not in SPLITS:
        raise InputError(f"no split {split!r}: expected one of {', '.join(SPLITS)}")
    reader, root = ("shapes", None) if data in ("shapes", "shapes:") else ("coco", data.removeprefix("coco:"))
    given = {"reader": reader, "root": root}
    opened = recipes.stated_section(loaded.path, loaded.metadata, "data", DetectionData, given)
    seed = recipes.stated_section(loaded.path, loaded.metadata, "run", EvaluatedRun).seed
    images = open_coco(opened, SPLITS[split], masks=loaded.has_masks, seed=seed)
    if (images.classes, images.category_ids) != (loaded.classes, loaded.category_ids):
        raise InputError(
            f"{images.source} has the categories {_first_categories(images)}, "
            f"{loaded.path} knows {_first_categories(loaded)}: expected the same ids and names"
        )
    return images


def _first_categories(named: CocoImages | DetectorWeights) -> str:
    pairs = [f"{number} {name}" for number, name in zip(named.category_ids, named.classes, strict=True)]
    return ", ".join([*pairs[:5], *(["..."] if len(pairs) > 5 else [])])


def evaluate(
    loaded: DetectorWeights,
    images: CocoImages,
    *,
    device: torch.device | None = None,
    workers: int = 0,
    progress: Callable[[Iterable[HeldOut]], Iterable[HeldOut]] = iter,
) -> DetectionEvaluation:
    """Run every image through the detector once.

    Args:
        workers: processes that read images.
        progress: wraps the images as they are read, for example in a progress bar.
    """
    device = device or torch.device("cpu")
    model = loaded.model.to(device)
    results: list[dict[str, Any]] = []
    unreadable: dict[int, str] = {}
    examples: list[tuple[Image.Image, Image.Image]] = []
    seconds = 0.0
    for index, image, reason in progress(held_out_images(images, workers)):
        if image is None:
            unreadable[index] = reason
            continue
        begin = time.perf_counter()
        with about(loaded.path):
            found = find_objects(model, image.to(device))
        seconds += time.perf_counter() - begin
        results += as_results(images, index, found)
        if len(examples) < EXAMPLES:
            examples.append(_annotated_and_found(images, index, found, loaded))
    if not examples:
        raise InputError(f"none of the {len(images)} images can be read; the first: {next(iter(unreadable.values()))}")
    return DetectionEvaluation(
        images=len(images) - len(unreadable),
        images_per_second=(len(images) - len(unreadable)) / seconds,
        scores=coco_scores(images, results, unreadable),
        device=device_name(device),
        unreadable=list(unreadable.values()),
        examples=examples,
    )


def draw_examples(evaluation: DetectionEvaluation, output: Path) -> None:
    """Two rows of images: with the annotated objects, and with those that were found."""
    rows = [list(row) for row in zip(*evaluation.examples, strict=True)]
    draw_sheet(rows, ["annotated", "found"], output, EXAMPLE_HEIGHT)


def _annotated_and_found(
    images: CocoImages, index: int, found: Prediction, loaded: DetectorWeights
) -> tuple[Image.Image, Image.Image]:
    image, target = images.read(index)
    certain = {name: value[found["scores"] >= EXAMPLE_SCORE] for name, value in found.items()}
    return (
        with_objects(image, _drawn(target, images.classes), EXAMPLE_HEIGHT),
        with_objects(image, _drawn(certain, loaded.classes), EXAMPLE_HEIGHT),
    )


def _drawn(objects: dict[str, Any], classes: tuple[str, ...]) -> list[Drawn]:
    masks = objects["masks"].bool().numpy() if "masks" in objects else [None] * len(objects["boxes"])
    scores = [f" {100 * score:.0f} %" for score in objects["scores"].tolist()] if "scores" in objects else None
    return [
        Drawn(box, classes[label - 1] + (scores[index] if scores else ""), mask)
        for index, (box, label, mask) in enumerate(
            zip(objects["boxes"].tolist(), objects["labels"].tolist(), masks, strict=True)
        )
    ]
