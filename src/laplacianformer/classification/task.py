"""Train a classifier from a recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer.classification.batches import Loaders, open_loaders
from laplacianformer.data import NO_LABEL, Batch, Corrupt
from laplacianformer.recipes import Recipe
from laplacianformer.training import loop as engine
from laplacianformer.training import parts
from laplacianformer.training import weights as export
from laplacianformer.training.metrics import COLUMNS
from laplacianformer.training.processes import in_each, in_first

LOOKED_AT = 4  # images on which the attention is looked into


@dataclass(frozen=True)
class Result:
    """What came out. Accuracies are shares of the held-out images."""

    folder: Path
    weights: Path  # model.safetensors
    accuracy: float
    best_accuracy: float
    steps: int
    seconds: float  # of this process, not of what was done before a resume


def train(recipe: Recipe, output: Path, *, resume: bool = False) -> Result:
    """Train as the recipe says, into the folder `output`: metrics.csv, checkpoint.pt and, at the end,
    model.safetensors (the averaged weights where the recipe keeps an average)."""
    fabric = engine.start(recipe.run, output, resume=resume)
    rank, world, once = fabric.global_rank, fabric.world_size, partial(in_first, fabric)
    loaders = in_each(fabric, lambda: open_loaders(recipe, rank, world, once))
    return cast(Result, Training(recipe, output, fabric, loaders, resume=resume).run())


class Training(engine.Training):
    """Cross-entropy, with or without mixed labels; accuracy on the held-out images."""

    recipe: Recipe
    loaders: Loaders
    columns = COLUMNS
    averaged = ("loss", "accuracy", "gradient_norm")

    def __init__(self, recipe: Recipe, output: Path, fabric: Fabric, loaders: Loaders, *, resume: bool) -> None:
        self.title = recipe.model.name
        self.mixup = parts.create_mixup(recipe, len(loaders.classes), fabric.world_size)
        self.accuracy = self.best = 0.0  # on held-out images
        super().__init__(recipe, output, fabric, loaders, resume=resume)

    def create_model(self) -> nn.Module:
        return parts.create_model(self.recipe, len(self.loaders.classes))

    def prepare(self, batch: Batch) -> tuple[tuple[Any, ...], Any]:
        images, targets = self.fabric.to_device((batch.images, batch.targets))
        if self.mixup is not None:
            images, targets = self.mixup(images, targets)
        return (images,), targets

    def loss(self, output: Tensor, targets: Tensor) -> tuple[Tensor, list[Tensor]]:
        right = (output.argmax(1) == (targets if targets.ndim == 1 else targets.argmax(1))).double().mean()
        if targets.ndim == 2:  # mixed labels
            return SoftTargetCrossEntropy()(output, targets), [right]
        return F.cross_entropy(output, targets, label_smoothing=self.recipe.augment.label_smoothing), [right]

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy."""
        model = self.ready_to_evaluate()
        totals = torch.zeros(3, dtype=torch.float64, device=self.fabric.device)
        unreadable: list[str] = []
        for batch in self.loaders.val:
            unreadable += batch.corrupt
            images, targets = self.fabric.to_device((batch.images, batch.targets))
            with self.fabric.autocast():
                logits = model(images).float()
            right = (logits.argmax(1) == targets).sum()
            loss = F.cross_entropy(logits, targets, reduction="sum", ignore_index=NO_LABEL)
            totals += torch.stack([right, loss, (targets != NO_LABEL).sum()]).double()
        seen = int(totals[2]) + len(unreadable)
        in_each(self.fabric, lambda: Corrupt(self.corrupt.limit).add(unreadable, seen))
        right, loss, count = cast(Tensor, self.fabric.all_reduce(totals, reduce_op="sum")).tolist()
        self.accuracy = right / max(1, count)
        self.best = max(self.best, self.accuracy)
        return {"validation_loss": loss / max(1, count), "validation_accuracy": self.accuracy}

    def looked_at(self, batch: Batch) -> tuple[nn.Module, Tensor]:
        return self.bare.eval(), self.fabric.to_device(batch.images[:LOOKED_AT])

    def line(self, row: Mapping[str, Any]) -> str:
        return (
            f"epoch {row['epoch']:.0f} of {self.recipe.optimise.epochs}: loss {row['loss']:.3f}, "
            f"held out {row['validation_loss']:.3f}, accuracy {row['validation_accuracy']:.2%}, "
            f"{row['images_per_second']} images/s"
        )

    def summary(self) -> list[tuple[str, str]]:
        return [("accuracy on held-out images", f"{self.accuracy:.2%}"), ("best of all epochs", f"{self.best:.2%}")]

    def result(self, seconds: float) -> Result:
        return Result(self.output, self.weights, self.accuracy, self.best, self.step, seconds)

    def check_export(self) -> None:
        export.check(self.weights, self.bare, self.recipe, self.loaders.classes)

    def export(self, state: Mapping[str, Any]) -> None:
        scores = {"accuracy": self.accuracy, "best_accuracy": self.best, "steps": self.step}
        if self.average is not None:
            scores["ema_decay"] = self.average.get_decay(self.step)
        export.export(self.weights, state, self.recipe, self.loaders.classes, scores)

    def scores_state(self) -> dict[str, Any]:
        return {"accuracy": [self.accuracy, self.best]}

    def restore_scores(self, state: Mapping[str, Any]) -> None:
        self.accuracy, self.best = state["accuracy"]
