"""Train a classifier from a recipe."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer.classification._batches import Loaders, open_loaders
from laplacianformer.classification._model import create_mixup, create_model
from laplacianformer.classification._recipe import Recipe
from laplacianformer.data import Batch, mix, seed_all
from laplacianformer.training._accuracy import AccuracyTask
from laplacianformer.training._loop import train_task
from laplacianformer.training._origin import origin
from laplacianformer.training._report import Report
from laplacianformer.training._session import Session
from laplacianformer.weights._file import FORBIDDEN, checked_metadata

COLUMNS = (
    "step",  # optimiser steps so far
    "epoch",  # epochs so far, with a fraction
    "loss",  # training loss: mean since the row before, over all processes
    "accuracy",  # on the training batches (augmented; mixed labels count as their larger part)
    "lr",
    "gradient_norm",  # before clipping: mean since the row before
    "images_per_second",  # of wall time since the row before, without the evaluation on held-out images
    "data_wait",  # fraction of that time in which the first process waited for images
    "kernel_mean",  # mean kernel value in the attention layers, on a few images of the batch,
    "residual",  # the worst residual of their solves,
    "query_dependence",  # how much of their global branch depends on the query,
    "contribution",  # and its part in the residual stream: means over the layers
    "validation_loss",  # on held-out images; empty except at the end of an epoch
    "validation_accuracy",
)
_INSPECTED = 4  # images on which the attention is inspected


@dataclass(frozen=True)
class Result:
    """The end of a run. Accuracies are fractions of the held-out images."""

    folder: Path
    weights: Path  # model.safetensors
    accuracy: float
    best_accuracy: float
    steps: int
    seconds: float  # of this process, without what was done before a resume


def train(
    recipe: Recipe, output: Path, *, resume: bool = False, report: Report | None = None, allow_pipes: bool = False
) -> Result:
    """Train as the recipe says, into the folder `output`: metrics.csv, checkpoint.pt and, at the end,
    model.safetensors (the averaged weights where the recipe keeps an average).

    Args:
        resume: continue from the checkpoint in the folder, if there is one.
        report: is told how the run goes; without it nothing is printed.
        allow_pipes: whether data.root may be a shell command (reader wds/, pipe:COMMAND).
    """
    opened = partial(open_loaders, recipe, allow_pipes=allow_pipes)
    task, done = train_task(recipe, output, opened, ClassificationTask, resume=resume, report=report)
    return Result(output, done.weights, task.accuracy, task.best, done.steps, done.seconds)


class ClassificationTask(AccuracyTask):
    """Cross-entropy, with or without mixed labels; accuracy on the held-out images."""

    what = "images"
    columns = COLUMNS
    numbers = ("accuracy",)
    lr_steps = ()

    def __init__(self, recipe: Recipe, loaders: Loaders, session: Session) -> None:
        self.recipe, self.loaders, self.fabric = recipe, loaders, session.fabric
        self.title, self.batches = recipe.model.name, loaders.train
        self.classes, self.images = loaders.classes, loaders.images
        self.mixup = create_mixup(recipe, len(loaders.classes), session.fabric.world_size)
        seed_all(mix(recipe.run.seed, 4))
        self.model, args = create_model(recipe, loaders.classes)
        self.metadata = self._checked_metadata(session.weights, args)

    def _checked_metadata(self, path: Path, args: Mapping[str, Any]) -> dict[str, str]:
        """What the weights file will say, or the error of writing it, before the run and not after it."""
        lasting = {name: value for name, value in args.items() if name not in FORBIDDEN}
        metadata = {
            "architecture": self.recipe.model.name,
            "model_args": json.dumps({**lasting, "num_classes": len(self.classes)}),
            "input": json.dumps(self.recipe.data.input),
            **origin(self.recipe, {}),
        }
        # A model that was built with just these arguments is the one that the metadata describes.
        described = self.recipe.model.weights is None and lasting == args
        expected = self.model.state_dict() if described else None
        return checked_metadata(path, self.model, self.classes, metadata, expected=expected)

    def parameters(self) -> nn.Module:
        return self.model

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

    def evaluation_due(self, epoch: int) -> bool:
        return True

    def plain(self, batch: Batch) -> tuple[tuple[Any, ...], Any]:
        """Images and targets as they are, not mixed."""
        images, targets = self.fabric.to_device((batch.images, batch.targets))
        return (images,), targets

    def attention_input(self, batch: Batch) -> tuple[nn.Module, Tensor]:
        return self.model.eval(), self.fabric.to_device(batch.images[:_INSPECTED])
