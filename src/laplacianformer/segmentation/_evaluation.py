"""Intersection over union and speed of a segmenter on labelled images."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import to_pil_image

from laplacianformer._util.devices import device_name
from laplacianformer._util.errors import InputError, about
from laplacianformer.plots._pillow import draw_sheet
from laplacianformer.segmentation._batches import HeldOut, held_out_images
from laplacianformer.segmentation._classes import find_classes
from laplacianformer.segmentation._images import LabelledImages, Split, open_images
from laplacianformer.segmentation._inference import windowed
from laplacianformer.segmentation._pictures import overlay
from laplacianformer.segmentation._recipe import SegmentationData
from laplacianformer.segmentation._scores import PixelScores, Scores
from laplacianformer.segmentation._weights import SegmenterWeights
from laplacianformer.training import _recipes as recipes
from laplacianformer.training._recipe import EvaluatedRun

SPLITS: dict[str, Split] = {
    "train": "train",
    "test": "test",
    **dict.fromkeys(("validation", "val", "valid", "eval"), "val"),
}
READERS = ("folders", "ade20k", "cityscapes")
EXAMPLES = 5  # images on the sheet
EXAMPLE_HEIGHT = 240  # pixels


@dataclass(frozen=True)
class SegmentationEvaluation:
    """Scores in percent. Images that can't be read are only named, and count nowhere else."""

    images: int
    images_per_second: float  # of the segmenter alone
    scores: Scores
    device: str
    unreadable: list[str]  # path and reason
    examples: list[tuple[Image.Image, Image.Image, Image.Image]]  # the first images: as they are, annotated, found


def open_data(loaded: SegmenterWeights, data: str, split: str = "validation") -> LabelledImages:
    """`[READER:]DIR` or `shapes`, if its classes are those of the weights."""
    if split not in SPLITS:
        raise InputError(f"no split {split!r}: expected one of {', '.join(SPLITS)}")
    stated = partial(recipes.stated_section, loaded.path, loaded.metadata)
    reader, colon, root = data.partition(":")
    if data in ("shapes", "shapes:"):
        given = {"reader": "shapes", "root": None}
    elif colon and reader in READERS:
        given = {"reader": reader, "root": root}
    else:
        known = stated("data", SegmentationData).reader
        given = {"reader": known if known in READERS else "folders", "root": data}
    opened, seed = stated("data", SegmentationData, given), stated("run", EvaluatedRun).seed
    images = open_images(opened, SPLITS[split], seed, loaded.labels)
    if images.labels.names != loaded.labels.names:
        raise InputError(
            f"{images.source} has the classes {_first(images.labels.names)}, {loaded.path} knows "
            f"{_first(loaded.labels.names)}: expected the same, in the same order"
        )
    return images


def _first(names: tuple[str, ...]) -> str:
    return ", ".join([*names[:5], *(["..."] if len(names) > 5 else [])])


def evaluate(
    loaded: SegmenterWeights,
    images: LabelledImages,
    *,
    window: int | None = None,
    device: torch.device | None = None,
    workers: int = 0,
    progress: Callable[[Iterable[HeldOut]], Iterable[HeldOut]] = iter,
) -> SegmentationEvaluation:
    """Run every image through the segmenter once.

    Args:
        window: side in pixels of the windows that images are seen in, 0 for the whole image; None: as the weights say.
        workers: processes that read images.
        progress: wraps the images as they are read, for example in a progress bar.
    """
    device, preparation = device or torch.device("cpu"), windowed(loaded.preparation, window)
    model, counted = loaded.model.to(device), PixelScores(loaded.labels.names, device)
    unreadable: list[str] = []
    examples: list[tuple[Image.Image, Image.Image, Image.Image]] = []
    seconds = 0.0
    for _, image, classes, reason in progress(held_out_images(images, workers)):
        if image is None or classes is None:
            unreadable.append(reason)
            continue
        begin = time.perf_counter()
        with about(loaded.path):
            found = find_classes(model, image.to(device), preparation)
        seconds += time.perf_counter() - begin
        counted.add(found, classes.to(device))
        if len(examples) < EXAMPLES:
            examples.append(_example(loaded, image, classes, found))
    if not examples:
        raise InputError(f"none of the {len(images)} images can be read; the first: {unreadable[0]}")
    count = len(images) - len(unreadable)
    return SegmentationEvaluation(count, count / seconds, counted.compute(), device_name(device), unreadable, examples)


def _example(
    loaded: SegmenterWeights, image: Tensor, classes: Tensor, found: Tensor
) -> tuple[Image.Image, Image.Image, Image.Image]:
    plain = to_pil_image(image)
    drawn = [overlay(plain, indices.cpu().numpy(), loaded.labels) for indices in (classes, found)]
    return plain, drawn[0], drawn[1]


def draw_examples(evaluation: SegmentationEvaluation, output: Path) -> None:
    """Three rows of images: as they are, with the annotated classes, and with those that were found."""
    rows = [list(row) for row in zip(*evaluation.examples, strict=True)]
    draw_sheet(rows, ["image", "annotated", "found"], output, EXAMPLE_HEIGHT)
