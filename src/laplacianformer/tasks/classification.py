"""Train a classifier from a recipe. Lightning Fabric runs it on any number of devices and machines.

Every source of chance is a function of the seed and a counter: the order of samples of the epoch, augmentation of
epoch and sample, Mixup and stochastic depth of the step. So a checkpoint needs no state of random generators, and a
resumed run does what the run that was not stopped would have done.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from timm.loss import SoftTargetCrossEntropy
from timm.utils import ModelEmaV3, distribute_bn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from laplacianformer.data import NO_LABEL, Batch, Corrupt, mix, seed_all
from laplacianformer.data.loaders import Loaders, open_loaders
from laplacianformer.errors import InputError
from laplacianformer.files import check_folder, writing
from laplacianformer.recipes import Recipe, as_yaml
from laplacianformer.tasks import checkpoint, export, parts, sharding, trouble
from laplacianformer.tasks.clock import Clock
from laplacianformer.tasks.metrics import Metrics, attention_state
from laplacianformer.tasks.report import Report
from laplacianformer.tasks.together import in_each, in_first

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
    fabric = parts.create_engine(recipe.run)
    fabric.launch()
    in_first(fabric, lambda: _check_output(output, resume=resume))
    if recipe.run.precision == "bfloat16" and fabric.device.type == "cpu":
        in_each(fabric, trouble.try_bfloat16_on_cpu)
    rank, world, once = fabric.global_rank, fabric.world_size, partial(in_first, fabric)
    loaders = in_each(fabric, lambda: open_loaders(recipe, rank, world, once))
    return Training(recipe, output, fabric, loaders, resume=resume).run()


def _check_output(output: Path, *, resume: bool) -> None:
    if checkpoint.exists(output) and not resume:
        raise InputError(f"{output} holds a run already: pass --resume to go on with it, or another --output")
    check_folder(output)


class Training:
    """One run: everything that changes during it, and how."""

    def __init__(self, recipe: Recipe, output: Path, fabric: Fabric, loaders: Loaders, *, resume: bool) -> None:
        self.recipe, self.output, self.fabric, self.loaders = recipe, output, fabric, loaders
        self.steps_an_epoch = len(loaders.train)
        self.steps = self.steps_an_epoch * recipe.optimise.epochs
        self.sharded = recipe.run.strategy == "fsdp"
        seed_all(mix(recipe.run.seed, 4))
        self.bare = parts.create_model(recipe, len(loaders.classes))
        self.weights = output / "model.safetensors"
        export.check(self.weights, self.bare, recipe, loaders.classes)
        decay = recipe.optimise.ema_decay
        self.average = ModelEmaV3(self.bare, decay, use_warmup=True, foreach=not self.sharded) if decay else None
        self.model = fabric.setup_module(self.bare)
        if self.average is not None:
            self.average.to(fabric.device)
            if self.sharded:
                fabric.setup_module(self.average.module)
        self.raw_optimiser = parts.create_optimiser(self.bare, recipe.optimise)
        self.schedule = parts.create_schedule(self.raw_optimiser, recipe.optimise, self.steps_an_epoch)
        self.optimiser: Any = fabric.setup_optimizers(self.raw_optimiser)
        self.mixup = parts.create_mixup(recipe, len(loaders.classes), fabric.world_size)
        self.corrupt = Corrupt(recipe.data.corrupt_limit)

        self.step = 0
        self.sums = torch.zeros(4, dtype=torch.float64)  # loss, accuracy, gradient norm, steps since the last row
        self.accuracy = self.best = 0.0  # on held-out images
        self.clock = Clock()
        if resume and in_first(fabric, lambda: checkpoint.exists(output)):
            self.restore(in_each(fabric, lambda: checkpoint.load(output)))
        self.metrics: Metrics | None = None  # of the first process
        self.report = Report(recipe, self.steps, self.step, active=fabric.is_global_zero)

    # ---- the loop ----

    def run(self) -> Result:
        started = time.monotonic()
        in_first(self.fabric, self.open_metrics)
        self.clock.skip()
        with self.report:
            for epoch in range(self.step // self.steps_an_epoch, self.recipe.optimise.epochs):
                for batch in self.batches(epoch):
                    self.advance(batch)
                    self.after_step(batch)
        if self.metrics is not None:
            self.metrics.close()
        state = sharding.model_state(self.evaluated, sharded=self.sharded)
        scores = {"accuracy": self.accuracy, "best_accuracy": self.best, "steps": self.step}
        if self.average is not None:
            scores["ema_decay"] = self.average.get_decay(self.step)
        in_first(self.fabric, lambda: export.export(self.weights, state, self.recipe, self.loaders.classes, scores))
        result = Result(self.output, self.weights, self.accuracy, self.best, self.step, time.monotonic() - started)
        self.report.table(result)
        return result

    def open_metrics(self) -> None:
        with writing(self.output):
            self.output.mkdir(parents=True, exist_ok=True)
        checkpoint.clean(self.output)
        self.metrics = Metrics(self.output, self.step, tensorboard=self.recipe.run.tensorboard)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Those that are left of an epoch. Where one process can't go on, all stop."""
        self.corrupt.start_epoch()
        left = self.loaders.train.epoch(epoch, self.step % self.steps_an_epoch)

        def take() -> Batch | None:
            batch = next(left, None)
            if batch is not None:
                self.corrupt.add(batch.corrupt, self.steps_an_epoch * len(batch.targets))
            return batch

        while (batch := in_each(self.fabric, take)) is not None:
            self.clock.wait()
            yield batch
            self.clock.count()

    def advance(self, batch: Batch) -> None:
        """One step of the optimiser."""
        self.seed(self.step)
        self.model.train()
        images, targets = self.fabric.to_device((batch.images, batch.targets))
        if self.mixup is not None:
            images, targets = self.mixup(images, targets)
        self.schedule.step_update(self.step)
        logits = self.model(images)
        loss = self.loss(logits, targets)
        if not self.everywhere(loss.isfinite()):
            self.stop_not_finite(images)
        self.fabric.backward(loss)
        parameters = [parameter for parameter in self.bare.parameters() if parameter.grad is not None]
        total = get_total_norm([cast(Tensor, parameter.grad) for parameter in parameters])
        norm = sharding.whole(total)
        if not norm.isfinite():  # Looked at before clipping, which would spread it to every gradient.
            self.stop_not_finite()
        if self.recipe.optimise.clip_norm:
            clip_grads_with_norm_(parameters, self.recipe.optimise.clip_norm, total)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        if self.average is not None:
            self.average.update(self.bare, self.step)
        right = (logits.argmax(1) == (targets if targets.ndim == 1 else targets.argmax(1))).double().mean()
        self.sums += torch.stack([loss.detach().double(), right, norm.double(), torch.ones_like(right)]).cpu()

    def after_step(self, batch: Batch) -> None:
        """What is due after a step: a row, an evaluation, a checkpoint; in this order, so that rows are never lost."""
        run, end_of_epoch = self.recipe.run, self.step % self.steps_an_epoch == 0
        scores = self.evaluate() if end_of_epoch else {}
        if end_of_epoch or self.step % run.log_steps == 0:
            self.log(batch, scores)
        if end_of_epoch or self.step % run.checkpoint_steps == 0:
            state = self.state()
            in_first(self.fabric, lambda: checkpoint.save(self.output, state))
        self.report.advance(self.step)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if targets.ndim == 2:  # mixed labels
            return SoftTargetCrossEntropy()(logits, targets)
        return F.cross_entropy(logits, targets, label_smoothing=self.recipe.augment.label_smoothing)

    def everywhere(self, fine: Tensor) -> bool:
        """Whether it is so in all processes: they have to stop together."""
        if self.fabric.world_size == 1:
            return bool(fine)
        return bool(self.fabric.all_reduce(fine.float(), reduce_op="min"))

    def seed(self, step: int) -> None:
        seed_all(mix(self.recipe.run.seed, step, 2, self.fabric.global_rank))

    def stop_not_finite(self, images: Tensor | None = None) -> None:
        """Say where it began: in the forward pass of these images, or else in the gradients."""
        if images is None:
            what, where = "gradient", trouble.gradients_not_finite(self.bare)
        else:
            self.seed(self.step)
            with self.fabric.autocast():
                what, where = "loss", trouble.first_not_finite(self.bare, images)
        raise InputError(
            f"the {what} is not finite at step {self.step}: {where}; checkpoints are from before: try a lower "
            "optimise.lr or optimise.clip_norm, or run.precision=float32"
        )

    # ---- evaluation and rows ----

    @property
    def evaluated(self) -> nn.Module:
        """The weights that count: their average, where there is one."""
        return self.average.module if self.average is not None else self.bare

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the held-out images, over all processes."""
        self.clock.count()
        model = self.evaluated.eval()
        if self.fabric.world_size > 1:  # running statistics of the first process, as they are in its checkpoint
            distribute_bn(model, self.fabric.world_size, reduce=False)
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
        self.clock.skip()
        return {"validation_loss": loss / max(1, count), "validation_accuracy": self.accuracy}

    def log(self, batch: Batch, scores: dict[str, float]) -> None:
        """A row of averages since the last one."""
        means = self.sums[:3] / self.sums[3]
        loss, accuracy, norm = cast(Tensor, self.fabric.all_reduce(means, reduce_op="mean")).tolist()
        images = self.recipe.optimise.batch_size * self.sums[3].item()
        self.clock.count()
        row = {
            "step": self.step,
            "epoch": self.step / self.steps_an_epoch,
            "loss": loss,
            "accuracy": accuracy,
            "lr": self.optimiser.param_groups[0]["lr"],
            "gradient_norm": norm,
            "images_per_second": round(images / self.clock.seconds, 1),
            "data_wait": round(self.clock.waited / self.clock.seconds, 3),
            **scores,
        }
        row |= attention_state(self.bare.eval(), self.fabric.to_device(batch.images[:LOOKED_AT]))
        self.sums.zero_()
        self.clock.restart()
        in_first(self.fabric, lambda: cast(Metrics, self.metrics).add(row))
        self.report.row(row)

    # ---- state ----

    def state(self) -> dict[str, Any]:
        """For the first process; every process has to call this."""
        average = self.average.module if self.average is not None else None
        self.clock.count()
        return {
            "step": self.step,
            "model": sharding.model_state(self.bare, sharded=self.sharded),
            "average": sharding.model_state(average, sharded=self.sharded) if average is not None else None,
            "optimiser": sharding.optimiser_state(self.bare, self.raw_optimiser, sharded=self.sharded),
            "sums": self.sums,
            "seconds": [self.clock.seconds, self.clock.waited],
            "accuracy": [self.accuracy, self.best],
            "recipe": as_yaml(self.recipe),
            "classes": list(self.loaders.classes),
            "images": self.loaders.images,
        }

    def restore(self, state: dict[str, Any]) -> None:
        checkpoint.check_same_run(state, self.recipe, self.loaders.classes, self.loaders.images, self.output)
        sharding.load_model_state(self.bare, state["model"], sharded=self.sharded)
        if self.average is not None:
            sharding.load_model_state(self.average.module, state["average"], sharded=self.sharded)
        sharding.load_optimiser_state(self.bare, self.raw_optimiser, state["optimiser"], sharded=self.sharded)
        self.step, self.sums = state["step"], state["sums"]
        self.clock.seconds, self.clock.waited = state["seconds"]
        self.accuracy, self.best = state["accuracy"]
