"""What a person sees of a run: a progress bar, a line an epoch, a table at the end."""

from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from laplacianformer.recipes import Recipe

if TYPE_CHECKING:
    from laplacianformer.tasks.classification import Result


class Report:
    """Only the first process speaks."""

    def __init__(self, recipe: Recipe, steps: int, step: int, *, active: bool) -> None:
        self.recipe, self.active = recipe, active
        self.console = Console(quiet=not active)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not active,
        )
        self.task = self.progress.add_task(recipe.model.name, total=steps, completed=step)

    def __enter__(self) -> "Report":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step)

    def row(self, row: dict[str, Any]) -> None:
        self.progress.update(self.task, description=f"loss {row['loss']:.3f}")
        if "validation_accuracy" in row:
            self.console.print(
                f"epoch {row['epoch']:.0f} of {self.recipe.optimise.epochs}: loss {row['loss']:.3f}, "
                f"held out {row['validation_loss']:.3f}, accuracy {row['validation_accuracy']:.2%}, "
                f"{row['images_per_second']} images/s"
            )

    def table(self, result: "Result") -> None:
        averaged = self.recipe.optimise.ema_decay > 0
        table = Table(title=self.recipe.model.name, show_header=False)
        table.add_column()
        table.add_column(overflow="fold")
        table.add_row("accuracy on held-out images", f"{result.accuracy:.2%}")
        table.add_row("best of all epochs", f"{result.best_accuracy:.2%}")
        table.add_row("steps", str(result.steps))
        table.add_row("time", f"{result.seconds:.0f} s")
        table.add_row("weights" + (" (averaged)" if averaged else ""), str(result.weights))
        self.console.print(table)
