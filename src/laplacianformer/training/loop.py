"""The loop of every task: steps, rows, checkpoints, weights. Lightning Fabric runs it on any number of devices.

Every source of chance is a function of the seed and a counter: the order of samples of the epoch, augmentation of
epoch and sample, Mixup, sampling of boxes and stochastic depth of the step. So a checkpoint needs no state of random
generators, and a resumed run does what the run that was not stopped would have done.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from rich.table import Table
from timm.utils import ModelEmaV3, distribute_bn
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import check_folder, writing
from laplacianformer.classification.batches import Loaders
from laplacianformer.data import Corrupt, mix, seed_all
from laplacianformer.detection.batches import DetectionLoaders
from laplacianformer.recipes import AnyRecipe, Run, as_yaml
from laplacianformer.training import checkpoint, parts, sharding
from laplacianformer.training import finite as trouble
from laplacianformer.training.clock import Clock
from laplacianformer.training.metrics import Metrics, attention_state
from laplacianformer.training.processes import in_each, in_first
from laplacianformer.training.report import Report

AnyLoaders = Loaders | DetectionLoaders


def start(run: Run, output: Path, *, resume: bool) -> Fabric:
    """The processes of a run, after what can be refused before anything is read."""
    fabric = parts.create_engine(run)
    fabric.launch()
    in_first(fabric, lambda: _check_output(output, resume=resume))
    if run.precision == "bfloat16" and fabric.device.type == "cpu":
        in_each(fabric, trouble.try_bfloat16_on_cpu)
    return fabric


def _check_output(output: Path, *, resume: bool) -> None:
    if checkpoint.exists(output) and not resume:
        raise InputError(f"{output} holds a run already: pass --resume to go on with it, or another --output")
    check_folder(output)


class Training(ABC):
    """One run: everything that changes during it, and how. A task says what is trained and what counts."""

    title: str  # of the progress bar and of the table at the end
    columns: tuple[str, ...]  # of metrics.csv
    averaged: tuple[str, ...]  # columns that are means over steps: the loss, the task's numbers, the gradient norm

    def __init__(self, recipe: AnyRecipe, output: Path, fabric: Fabric, loaders: AnyLoaders, *, resume: bool) -> None:
        self.recipe, self.output, self.fabric, self.loaders = recipe, output, fabric, loaders
        self.steps_an_epoch = len(loaders.train)
        self.steps = self.steps_an_epoch * recipe.optimise.epochs
        self.sharded = recipe.run.strategy == "fsdp"
        seed_all(mix(recipe.run.seed, 4))
        self.bare = self.create_model()
        self.weights = output / "model.safetensors"
        self.check_export()
        decay = recipe.optimise.ema_decay
        self.average = ModelEmaV3(self.bare, decay, use_warmup=True, foreach=not self.sharded) if decay else None
        self.model = fabric.setup_module(self.bare)
        if self.average is not None:
            self.average.to(fabric.device)
            if self.sharded:
                fabric.setup_module(self.average.module)
        self.raw_optimiser = self.create_optimiser()
        self.schedule = parts.create_schedule(self.raw_optimiser, recipe.optimise, self.steps_an_epoch)
        self.optimiser: Any = fabric.setup_optimizers(self.raw_optimiser)
        self.corrupt = Corrupt(recipe.data.corrupt_limit)

        self.step = 0
        self.sums = torch.zeros(len(self.averaged) + 1, dtype=torch.float64)  # since the last row, and their steps
        self.clock = Clock()
        if resume and in_first(fabric, lambda: checkpoint.exists(output)):
            self.restore(in_each(fabric, lambda: checkpoint.load(output)))
        self.metrics: Metrics | None = None  # of the first process
        self.report = Report(self.title, self.steps, self.step, active=fabric.is_global_zero)

    # ---- what a task says ----

    @abstractmethod
    def create_model(self) -> nn.Module: ...

    def create_optimiser(self) -> torch.optim.Optimizer:
        return parts.create_optimiser(self.bare, self.recipe.optimise)

    @abstractmethod
    def prepare(self, batch: Any) -> tuple[tuple[Any, ...], Any]:
        """What the model is called with, and what the loss needs beside its output; on the device."""

    @abstractmethod
    def loss(self, output: Any, targets: Any) -> tuple[Tensor, list[Tensor]]:
        """The loss of a training batch, and the task's numbers for the row."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Scores on the held-out images, over all processes."""

    def evaluation_due(self) -> bool:
        """Asked at the end of each epoch."""
        return True

    @abstractmethod
    def looked_at(self, batch: Any) -> tuple[nn.Module, Tensor]:
        """The part of the model with the attention, and what it takes of a few images of a batch."""

    @abstractmethod
    def line(self, row: Mapping[str, Any]) -> str:
        """A row with scores, for people."""

    @abstractmethod
    def summary(self) -> list[tuple[str, str]]:
        """The scores of the run, for people."""

    def tables(self) -> list[Table]:
        """More than the summary, for people."""
        return []

    @abstractmethod
    def result(self, seconds: float) -> Any: ...

    @abstractmethod
    def check_export(self) -> None:
        """Raise what `export` would raise, before the run and not after it."""

    @abstractmethod
    def export(self, state: Mapping[str, Any]) -> None:
        """Write these weights to `self.weights`."""

    @abstractmethod
    def scores_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the scores so far."""

    @abstractmethod
    def restore_scores(self, state: Mapping[str, Any]) -> None: ...

    # ---- the loop ----

    def run(self) -> Any:
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
        in_first(self.fabric, lambda: self.export(state))
        seconds = time.monotonic() - started
        averaged = " (averaged)" if self.average is not None else ""
        rows = [("steps", str(self.step)), ("time", f"{seconds:.0f} s"), (f"weights{averaged}", str(self.weights))]
        self.report.end(self.title, [*self.summary(), *rows], self.tables())
        return self.result(seconds)

    def open_metrics(self) -> None:
        with writing(self.output):
            self.output.mkdir(parents=True, exist_ok=True)
        checkpoint.clean(self.output)
        tensorboard = self.recipe.run.tensorboard
        self.metrics = Metrics(self.output, self.step, tensorboard=tensorboard, columns=self.columns)

    def batches(self, epoch: int) -> Iterator[Any]:
        """Those that are left of an epoch. Where one process can't go on, all stop."""
        self.corrupt.start_epoch()
        left: Iterator[Any] = self.loaders.train.epoch(epoch, self.step % self.steps_an_epoch)

        def take() -> Any:
            batch = next(left, None)
            if batch is not None:
                self.corrupt.add(batch.corrupt, self.steps_an_epoch * len(batch.targets))
            return batch

        while (batch := in_each(self.fabric, take)) is not None:
            self.clock.wait()
            yield batch
            self.clock.count()

    def advance(self, batch: Any) -> None:
        """One step of the optimiser."""
        self.seed(self.step)
        self.model.train()
        arguments, targets = self.prepare(batch)
        self.schedule.step_update(self.step)
        loss, numbers = self.loss(self.model(*arguments), targets)
        if not self.everywhere(loss.isfinite()):
            self.stop_not_finite(arguments)
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
        found = [loss.detach(), *numbers, norm, torch.ones_like(norm)]
        self.sums += torch.stack([number.double() for number in found]).cpu()

    def after_step(self, batch: Any) -> None:
        """What is due after a step: a row, an evaluation, a checkpoint; in this order, so that rows are never lost."""
        run, end_of_epoch = self.recipe.run, self.step % self.steps_an_epoch == 0
        scores = self.scores_now() if end_of_epoch and self.evaluation_due() else {}
        if end_of_epoch or self.step % run.log_steps == 0:
            self.log(batch, scores)
        if end_of_epoch or self.step % run.checkpoint_steps == 0:
            state = self.state()
            in_first(self.fabric, lambda: checkpoint.save(self.output, state))
        self.report.advance(self.step)

    def everywhere(self, fine: Tensor) -> bool:
        """Whether it is so in all processes: they have to stop together."""
        if self.fabric.world_size == 1:
            return bool(fine)
        return bool(self.fabric.all_reduce(fine.float(), reduce_op="min"))

    def seed(self, step: int) -> None:
        seed_all(mix(self.recipe.run.seed, step, 2, self.fabric.global_rank))

    def stop_not_finite(self, arguments: tuple[Any, ...] | None = None) -> None:
        """Say where it began: in the forward pass of these arguments, or else in the gradients."""
        if arguments is None:
            what, where = "gradient", trouble.gradients_not_finite(self.bare)
        else:
            self.seed(self.step)
            with self.fabric.autocast():
                what, where = "loss", trouble.first_not_finite(self.bare, *arguments)
        raise InputError(
            f"the {what} is not finite at step {self.step}: {where}; checkpoints are from before: try a lower "
            "optimise.lr or optimise.clip_norm, or run.precision=float32"
        )

    # ---- evaluation and rows ----

    @property
    def evaluated(self) -> nn.Module:
        """The weights that count: their average, where there is one."""
        return self.average.module if self.average is not None else self.bare

    def scores_now(self) -> dict[str, float]:
        """On the held-out images; its time is not that of training."""
        self.clock.count()
        scores = self.evaluate()
        self.clock.skip()
        return scores

    def ready_to_evaluate(self) -> nn.Module:
        model = self.evaluated.eval()
        if self.fabric.world_size > 1:  # running statistics of the first process, as they are in its checkpoint
            distribute_bn(model, self.fabric.world_size, reduce=False)
        return model

    def log(self, batch: Any, scores: dict[str, float]) -> None:
        """A row of averages since the last one."""
        means = self.sums[:-1] / self.sums[-1]
        values = cast(Tensor, self.fabric.all_reduce(means, reduce_op="mean")).tolist()
        images = self.recipe.optimise.batch_size * self.sums[-1].item()
        self.clock.count()
        row = {
            "step": self.step,
            "epoch": self.step / self.steps_an_epoch,
            **dict(zip(self.averaged, values, strict=True)),
            "lr": max(group["lr"] for group in self.optimiser.param_groups),
            "images_per_second": round(images / self.clock.seconds, 1),
            "data_wait": round(self.clock.waited / self.clock.seconds, 3),
            **scores,
        }
        row |= attention_state(*self.looked_at(batch))
        self.sums.zero_()
        self.clock.restart()
        in_first(self.fabric, lambda: cast(Metrics, self.metrics).add(row))
        self.report.row(row["loss"], self.line(row) if scores else "")

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
            **self.scores_state(),
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
        self.restore_scores(state)
