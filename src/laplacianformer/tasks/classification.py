"""Train a classifier from a recipe. Lightning Fabric runs it on any number of devices and machines.

Every source of chance is a function of the seed and a counter: the order of samples of the epoch, augmentation of
epoch and sample, Mixup and stochastic depth of the step. So a checkpoint needs no state of random generators, and a
resumed run does what the run that was not stopped would have done.
"""

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from lightning.fabric import Fabric
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, distribute_bn
from torch import Tensor, nn
from torch.nn import functional as F

import laplacianformer
from laplacianformer.data import Batch, Loaders, mix, open_loaders
from laplacianformer.diagnose import diagnose
from laplacianformer.errors import InputError
from laplacianformer.recipes import Recipe, as_yaml
from laplacianformer.tasks import checkpoint, trouble
from laplacianformer.tasks.metrics import Metrics
from laplacianformer.tasks.report import Report, commit
from laplacianformer.weights import save_weights

PRECISIONS: dict[str, Any] = {"float32": "32-true", "bfloat16": "bf16-mixed"}


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
    if checkpoint.exists(output) and not resume:
        raise InputError(f"{output} holds a run already: pass --resume to go on with it, or another --output")
    run = recipe.run
    fabric = Fabric(
        accelerator=run.accelerator,
        devices=run.devices,
        num_nodes=run.num_nodes,
        strategy=run.strategy,
        precision=PRECISIONS[run.precision],
    )
    fabric.launch()
    if run.precision == "bfloat16" and fabric.device.type == "cpu":
        trouble.try_bfloat16_on_cpu()
    loaders = open_loaders(recipe, fabric.global_rank, fabric.world_size)
    return Training(recipe, output, fabric, loaders, resume=resume).run()


class Training:
    """One run: everything that changes during it, and how."""

    def __init__(self, recipe: Recipe, output: Path, fabric: Fabric, loaders: Loaders, *, resume: bool) -> None:
        self.recipe, self.output, self.fabric, self.loaders = recipe, output, fabric, loaders
        self.seed(0)
        self.bare = create_model(recipe, len(loaders.classes))
        optimise = recipe.optimise
        rate = optimise.lr * optimise.batch_size / (optimise.lr_batch or optimise.batch_size)
        optimiser = create_optimizer_v2(self.bare, optimise.optimiser, lr=rate, weight_decay=optimise.weight_decay)
        self.steps = len(loaders.train) * optimise.epochs
        warmup = round(optimise.warmup_epochs * len(loaders.train))
        self.schedule = CosineLRScheduler(
            optimiser,
            t_initial=self.steps - warmup,
            lr_min=optimise.min_lr,
            warmup_t=warmup,
            warmup_lr_init=optimise.warmup_lr,
            warmup_prefix=True,
            t_in_epochs=False,
        )
        self.model, self.optimiser = fabric.setup(self.bare, optimiser)
        self.average = ModelEmaV3(self.bare, optimise.ema_decay, use_warmup=True) if optimise.ema_decay else None
        self.mixup = create_mixup(recipe, len(loaders.classes))

        self.step = 0
        self.sums = {"loss": 0.0, "gradient_norm": 0.0, "steps": 0}  # since the last row
        self.accuracy = self.best = 0.0
        if resume and checkpoint.exists(output):
            self.restore(checkpoint.load(output))
        self.seconds = 0.0  # of training steps since the last row

    # ---- the loop ----

    def run(self) -> Result:
        started = time.monotonic()
        if self.fabric.is_global_zero:
            self.output.mkdir(parents=True, exist_ok=True)
        self.fabric.barrier()
        self.report = Report(self.recipe, self.steps, self.step, active=self.fabric.is_global_zero)
        self.metrics = None
        if self.fabric.is_global_zero:
            self.metrics = Metrics(self.output, self.step, self.recipe.run.tensorboard)
        per_epoch = len(self.loaders.train)
        with self.report:
            for epoch in range(self.step // per_epoch, self.recipe.optimise.epochs):
                for batch in self.loaders.train.epoch(epoch, self.step % per_epoch):
                    self.advance(batch)
                    self.after_step(batch)
        if self.metrics is not None:
            self.metrics.close()
        weights = self.export()
        result = Result(self.output, weights, self.accuracy, self.best, self.step, time.monotonic() - started)
        self.report.table(result)
        return result

    def advance(self, batch: Batch) -> None:
        """One step of the optimiser."""
        started = time.monotonic()
        self.seed(self.step)
        self.model.train()
        images, targets = self.fabric.to_device((batch.images, batch.targets))
        if self.mixup is not None:
            images, targets = self.mixup(images, targets)
        self.schedule.step_update(self.step)
        loss = self.loss(self.model(images), targets)
        if not loss.isfinite():
            self.seed(self.step)
            self.stop_not_finite("loss", trouble.first_not_finite(self.bare, images))
        self.fabric.backward(loss)
        norm = self.clip()
        if not norm.isfinite():
            self.stop_not_finite("gradient", trouble.gradients_not_finite(self.bare))
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        if self.average is not None:
            self.average.update(self.bare, self.step)
        self.sums["loss"] += loss.item()
        self.sums["gradient_norm"] += norm.item()
        self.sums["steps"] += 1
        self.seconds += time.monotonic() - started

    def after_step(self, batch: Batch) -> None:
        """What is due after a step: a row, an evaluation, a checkpoint; in this order, so that rows are never lost."""
        run, end_of_epoch = self.recipe.run, self.step % len(self.loaders.train) == 0
        scores = self.evaluate() if end_of_epoch else {}
        if end_of_epoch or self.step % run.log_steps == 0:
            self.log(batch, scores)
        if end_of_epoch or self.step % run.checkpoint_steps == 0:
            self.save()
        self.report.advance(self.step)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if targets.ndim == 2:  # mixed labels
            return SoftTargetCrossEntropy()(logits, targets)
        return F.cross_entropy(logits, targets, label_smoothing=self.recipe.augment.label_smoothing)

    def clip(self) -> Tensor:
        limit = self.recipe.optimise.clip_norm
        return self.fabric.clip_gradients(
            self.model, self.optimiser, max_norm=limit or float("inf"), error_if_nonfinite=False
        )

    def seed(self, step: int) -> None:
        seed = mix(self.recipe.run.seed, step, 2, self.fabric.global_rank)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def stop_not_finite(self, what: str, where: str) -> None:
        raise InputError(
            f"the {what} is not finite at step {self.step}: {where}; the last checkpoint is from before: try a lower "
            "optimise.lr or optimise.clip_norm, or run.precision=float32"
        )

    # ---- evaluation and rows ----

    @property
    def evaluated(self) -> nn.Module:
        """The weights that count: their average, where there is one."""
        return self.average.module if self.average is not None else self.bare

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        if self.fabric.world_size > 1:  # running statistics of the first process, as they are in its checkpoint
            distribute_bn(self.evaluated, self.fabric.world_size, reduce=False)
        self.evaluated.eval()
        totals = torch.zeros(3, dtype=torch.float64, device=self.fabric.device)
        for batch in self.loaders.val:
            images, targets = self.fabric.to_device((batch.images, batch.targets))
            with self.fabric.autocast():
                logits = self.evaluated(images).float()
            right = (logits.argmax(1) == targets).sum()
            loss = F.cross_entropy(logits, targets, reduction="sum")
            totals += torch.stack([right, loss, torch.tensor(len(targets), device=totals.device)]).double()
        right, loss, count = self.fabric.all_reduce(totals, reduce_op="sum").tolist()
        self.accuracy = right / count
        self.best = max(self.best, self.accuracy)
        return {"val_loss": loss / count, "accuracy": self.accuracy}

    def log(self, batch: Batch, scores: dict[str, float]) -> None:
        count, seconds = self.sums["steps"], self.seconds
        loss = self.fabric.all_reduce(torch.tensor(self.sums["loss"] / count, dtype=torch.float64), reduce_op="mean")
        row = {
            "step": self.step,
            "epoch": self.step / len(self.loaders.train),
            "loss": float(loss),
            "lr": self.optimiser.param_groups[0]["lr"],
            "gradient_norm": self.sums["gradient_norm"] / count,
            "images_per_second": round(self.recipe.optimise.batch_size * count / seconds, 1) if seconds else "",
            **self.look_inside(batch),
            **scores,
        }
        self.sums = {"loss": 0.0, "gradient_norm": 0.0, "steps": 0}
        self.seconds = 0.0
        if self.metrics is not None:
            self.metrics.add(row)
        self.report.row(row)

    def look_inside(self, batch: Batch) -> dict[str, float]:
        """Of the attention, on a few images; nothing for other token mixers."""
        if self.metrics is None or not any(
            isinstance(m, laplacianformer.LaplacianAttention) for m in self.bare.modules()
        ):
            return {}
        self.bare.eval()
        layers = diagnose(self.bare, self.fabric.to_device(batch.images[:4]))
        return {
            "kernel_mean": sum(layer.kernel_mean for layer in layers) / len(layers),
            "residual": max(layer.residual for layer in layers),
        }

    # ---- state ----

    def save(self) -> None:
        if not self.fabric.is_global_zero:
            return
        state = {
            "step": self.step,
            "model": self.bare.state_dict(),
            "average": self.average.module.state_dict() if self.average is not None else None,
            "optimiser": self.optimiser.state_dict(),
            "sums": self.sums,
            "accuracy": [self.accuracy, self.best],
            "recipe": as_yaml(self.recipe),
            "classes": list(self.loaders.classes),
        }
        checkpoint.save(self.output, state)

    def restore(self, state: dict[str, Any]) -> None:
        if len(state["classes"]) != len(self.loaders.classes):
            raise InputError(
                f"the checkpoint in {self.output} has {len(state['classes'])} classes, the data {len(self.loaders.classes)}"
            )
        self.bare.load_state_dict(state["model"])
        if self.average is not None:
            self.average.module.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.sums = state["step"], state["sums"]
        self.accuracy, self.best = state["accuracy"]

    def export(self) -> Path:
        path = self.output / "model.safetensors"
        if self.fabric.is_global_zero:
            data, averaged = self.recipe.data, self.average is not None
            scores = {"accuracy": self.accuracy, "best_accuracy": self.best, "steps": self.step, "averaged": averaged}
            metadata = {
                "architecture": self.recipe.model.name,
                "model_args": json.dumps({**self.recipe.model.args, "num_classes": len(self.loaders.classes)}),
                "input": json.dumps(
                    {key: getattr(data, key) for key in ("size", "mean", "std", "interpolation", "crop_pct")}
                ),
                "recipe": as_yaml(self.recipe),
                "metrics": json.dumps(scores),
                "commit": commit(),
                "date": time.strftime("%Y-%m-%d", time.gmtime()),
                "version": laplacianformer.__version__,
            }
            save_weights(path, self.evaluated, classes=self.loaders.classes, metadata=metadata)
        self.fabric.barrier()
        return path


def create_model(recipe: Recipe, num_classes: int) -> nn.Module:
    try:
        return timm.create_model(recipe.model.name, num_classes=num_classes, **recipe.model.args)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"can't create the model {recipe.model.name}: {' '.join(str(error).split())}") from None


def create_mixup(recipe: Recipe, num_classes: int) -> Mixup | None:
    augment = recipe.augment
    if not (augment.mixup or augment.cutmix):
        return None
    return Mixup(augment.mixup, augment.cutmix, label_smoothing=augment.label_smoothing, num_classes=num_classes)
