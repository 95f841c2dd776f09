"""The loop of every task: steps, rows, checkpoints, weights. Lightning Fabric runs it on any number of devices.

Every random choice is a function of the seed and a counter: the order of samples, of the epoch; augmentation, of epoch
and sample; Mixup, sampling of boxes and stochastic depth, of the step. So a checkpoint needs no state of random number
generators, and a resumed run does what the run would have done without the interruption.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import writing
from laplacianformer.data import Corrupt, mix, seed_all
from laplacianformer.inspect._diagnose import Diagnosis
from laplacianformer.inspect._finite import first_not_finite
from laplacianformer.training import _checkpoint as checkpoint
from laplacianformer.training import _finite as finite
from laplacianformer.training._clock import Clock
from laplacianformer.training._learner import Learner
from laplacianformer.training._metrics import Metrics, attention_columns, attention_table, diagnosed
from laplacianformer.training._processes import in_each, in_first
from laplacianformer.training._recipe import AnyRecipe
from laplacianformer.training._recipes import with_defaults
from laplacianformer.training._report import Report, Table
from laplacianformer.training._session import Session, start
from laplacianformer.training._task import AnyBatch, Task


@dataclass(frozen=True)
class Finished:
    """The end of a run."""

    weights: Path
    steps: int
    seconds: float  # of this session


class Loop:
    """Trains a task in a session: `Loop(task, session).run()`."""

    def __init__(self, task: Task, session: Session) -> None:
        self.task, self.session, self.fabric = task, session, session.fabric
        self.steps_per_epoch = len(task.batches)
        self.steps = self.steps_per_epoch * task.recipe.optimise.epochs
        self.learner = Learner(task, session.fabric)
        self.corrupt = Corrupt(task.recipe.data.corrupt_limit)
        self.averaged = ("loss", *task.numbers, "gradient_norm")  # columns that are means over steps
        self.metrics: Metrics | None = None  # of the first process, when it runs
        self.attention = Diagnosis()  # of the last row
        self.recorded: str | None = None  # the rows in the checkpoint that the run continues from

        self.step = 0
        self.sums = torch.zeros(len(self.averaged) + 1, dtype=torch.float64)  # since the last row; and number of steps
        self.clock = Clock()
        if session.resume and in_first(self.fabric, lambda: checkpoint.exists(session.output)):
            self.restore(in_each(self.fabric, lambda: checkpoint.load(session.output)))

    def run(self) -> Finished:
        """Train to the end, and write the weights."""
        started, report = time.monotonic(), self.session.report
        in_first(self.fabric, self._open_metrics)
        self.clock.skip()
        report.start(self.task.title, self.steps, self.step)
        try:
            for epoch in range(self.step // self.steps_per_epoch, self.task.recipe.optimise.epochs):
                for batch in self.batches(epoch):
                    self.advance(batch)
                    self.after_step(batch)
        finally:
            report.stop()
        if self.metrics is not None:
            self.metrics.close()
        self.save_weights()
        done = Finished(self.session.weights, self.step, time.monotonic() - started)
        attention = [attention_table(self.attention)] if self.attention else []
        report.end([*self.task.tables(), *attention, self.summary(done)])
        return done

    def _open_metrics(self) -> None:
        output = self.session.output
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
        checkpoint.clean(output)
        board = self.task.recipe.run.tensorboard
        self.metrics = Metrics(output, self.task.columns, self.step, tensorboard=board, recorded=self.recorded)

    # ---- steps ----

    def batches(self, epoch: int) -> Iterator[AnyBatch]:
        """The batches that are left of an epoch. Where one process can't go on, all stop."""
        self.corrupt.start_epoch()
        left: Iterator[AnyBatch] = self.task.batches.epoch(epoch, self.step % self.steps_per_epoch)

        def take() -> AnyBatch | None:
            batch = next(left, None)
            if batch is not None:
                self.corrupt.add(batch.corrupt, self.steps_per_epoch * len(batch.targets))
            return batch

        while (batch := in_each(self.fabric, take)) is not None:
            self.clock.wait()
            yield batch
            self.clock.count()

    def advance(self, batch: AnyBatch) -> None:
        """One step of the optimiser."""
        learner = self.learner
        self._seed()
        learner.model.train()
        arguments, targets = self.task.prepare(batch)
        learner.schedule.step_update(self.step)
        loss, numbers = self.task.loss(learner.model(*arguments), targets)
        if not self._everywhere(loss.isfinite()):
            self._stop_not_finite(arguments)
        norm = learner.update(loss, self.step)
        self.step += 1
        found = [loss.detach(), *numbers, norm, torch.ones_like(norm)]
        self.sums += torch.stack([number.double() for number in found]).cpu()

    def after_step(self, batch: AnyBatch) -> None:
        """What is due after a step: a row, an evaluation, a checkpoint; in this order, so that rows are never lost."""
        run, (epoch, rest) = self.task.recipe.run, divmod(self.step, self.steps_per_epoch)
        end_of_epoch = rest == 0
        scores = self.evaluate() if end_of_epoch and self.task.evaluation_due(epoch) else {}
        if end_of_epoch or self.step % run.log_steps == 0:
            self.log(batch, scores)
        if end_of_epoch or self.step % run.checkpoint_steps == 0:
            state = self.state()
            in_first(self.fabric, lambda: checkpoint.save(self.session.output, state))
        self.session.report.advance(self.step)

    def _seed(self) -> None:
        seed_all(mix(self.task.recipe.run.seed, self.step, 2, self.fabric.global_rank))

    def _everywhere(self, fine: Tensor) -> bool:
        """Whether all processes are fine: they have to stop together."""
        if self.fabric.world_size == 1:
            return bool(fine)
        return bool(self.fabric.all_reduce(fine.float(), reduce_op="min"))

    def _stop_not_finite(self, arguments: tuple[Any, ...]) -> None:
        """Name the first layer that is not finite, by a forward pass with the same random numbers."""
        self._seed()
        with self.fabric.autocast():
            raise finite.error("loss", self.step, first_not_finite(self.learner.bare, *arguments))

    # ---- evaluation, rows, weights ----

    def evaluate(self) -> dict[str, float]:
        """Scores on the held-out images; the time that this takes doesn't count as training."""
        self.clock.count()
        scores = self.task.evaluate(self.learner.evaluation_model())
        self.clock.skip()
        return scores

    def log(self, batch: AnyBatch, scores: dict[str, float]) -> None:
        """A row of means since the last one."""
        means = self.sums[:-1] / self.sums[-1]
        values = cast(Tensor, self.fabric.all_reduce(means, reduce_op="mean")).tolist()
        images = self.task.recipe.optimise.batch_size * self.sums[-1].item()
        self.clock.count()
        row = {
            "step": self.step,
            "epoch": self.step / self.steps_per_epoch,
            **dict(zip(self.averaged, values, strict=True)),
            "lr": self.learner.lr,
            "images_per_second": round(images / self.clock.seconds, 1),
            "data_wait": round(self.clock.waited / self.clock.seconds, 3),
            **scores,
        }
        self.attention = diagnosed(*self.task.attention_input(batch))
        row |= {name: value for name, value in attention_columns(self.attention).items() if name in self.task.columns}
        self.sums.zero_()
        self.clock.restart()
        in_first(self.fabric, lambda: cast(Metrics, self.metrics).add(row, self.attention))
        self.session.report.row(row["loss"], self.task.line(row) if scores else "")

    def save_weights(self) -> None:
        """Write the weights that count; every process has to call this."""
        tensors, steps, decay = self.learner.weights(), self.step, self.learner.ema_decay(self.step)
        in_first(self.fabric, lambda: self.task.save(self.session.weights, tensors, steps=steps, ema_decay=decay))

    def summary(self, done: Finished) -> Table:
        """The scores of the task, and what was done."""
        averaged = " (averaged)" if self.learner.average is not None else ""
        steps, seconds = ("steps", str(done.steps)), ("time", f"{done.seconds:.0f} s")
        weights = f"weights{averaged}", str(done.weights)
        return Table(self.task.title, (), (*self.task.summary(), steps, seconds, weights))

    # ---- checkpoints ----

    def state(self) -> dict[str, Any]:
        """A checkpoint, for the first process; every process has to call this."""
        self.clock.count()
        return {
            "step": self.step,
            **self.learner.state(),
            "sums": self.sums,
            "seconds": [self.clock.seconds, self.clock.waited],
            **self.task.state(),
            **checkpoint.identity(self.task.recipe, self.task.classes, self.task.images),
            "metrics": self.metrics.text if self.metrics is not None else "",
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint, if it is one of this run."""
        output = self.session.output
        stated = checkpoint.identity(self.task.recipe, self.task.classes, self.task.images)
        recipe = with_defaults(state["recipe"], type(self.task.recipe))
        checkpoint.check_same_run({**state, "recipe": recipe}, stated, output)
        if state["step"] > self.steps or state["sums"].shape != self.sums.shape:
            raise InputError(
                f"the checkpoint in {output} does not fit the run: step {state['step']} of {self.steps}, "
                f"{len(state['sums'])} sums where there are {len(self.sums)}; give another --output"
            )
        self.learner.restore(state, output)
        self.step, self.sums, self.recorded = state["step"], state["sums"], state.get("metrics")
        self.clock.seconds, self.clock.waited = state["seconds"]
        with checkpoint.fitting(output, "scores"):
            self.task.restore(state)


Made = TypeVar("Made", bound=Task)


def train_task(
    recipe: AnyRecipe,
    output: Path,
    open_data: Callable[..., Any],
    create: Callable[[Any, Any, Session], Made],
    *,
    resume: bool,
    report: Report | None,
) -> tuple[Made, Finished]:
    """Train a task from a recipe: launch the processes, open the data, create the task, run it to the end.

    Args:
        open_data: called as open_data(rank, world, once); `once` calls a function in the first process for all.
        create: called with the recipe, the data and the session.
    """
    with start(recipe.run, output, resume=resume, report=report) as session:
        fabric = session.fabric
        once = partial(in_first, fabric)
        data = in_each(fabric, lambda: open_data(fabric.global_rank, fabric.world_size, once))
        task = in_each(fabric, lambda: create(recipe, data, session))
        return task, Loop(task, session).run()
