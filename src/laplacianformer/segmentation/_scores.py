"""Intersection over union and pixel accuracy, by torchmetrics."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from laplacianformer.segmentation._labels import IGNORED


@dataclass(frozen=True)
class Scores:
    """In percent. A class that is neither annotated nor predicted has no IoU and is not in the mean."""

    mean_iou: float
    pixel_accuracy: float  # of the pixels that count
    iou: dict[str, float | None]  # by class

    def rows(self) -> tuple[tuple[str, ...], ...]:
        """One row per class, for people."""
        return tuple((name, "-" if value is None else f"{value:.1f}") for name, value in self.iou.items())


class PixelScores:
    """Adds up predictions; pixels whose target is IGNORED count nowhere."""

    def __init__(self, classes: tuple[str, ...], device: torch.device) -> None:
        self.classes = classes
        options: dict[str, Any] = {"num_classes": len(classes), "ignore_index": IGNORED, "validate_args": False}
        self.metrics = MetricCollection(
            {
                "iou": MulticlassJaccardIndex(average="none", zero_division=math.nan, **options),
                "accuracy": MulticlassAccuracy(average="micro", **options),
            }
        ).to(device)

    def add(self, predicted: Tensor, target: Tensor) -> None:
        """Indices of classes, of the same shape."""
        self.metrics.update(predicted.long()[None], target.long()[None])

    def compute(self) -> Scores:
        """Over all processes: each has to call this."""
        found = self.metrics.compute()
        iou = (100 * found["iou"].double()).tolist()
        known = [value for value in iou if not math.isnan(value)]
        by_class = {name: None if math.isnan(value) else value for name, value in zip(self.classes, iou, strict=True)}
        mean = sum(known) / len(known) if known else 0.0
        return Scores(mean, 100 * float(found["accuracy"]), by_class)
