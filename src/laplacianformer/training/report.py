"""What a person sees of a run: a progress bar, a line an epoch, a table at the end."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


class Report:
    """Only the first process speaks."""

    def __init__(self, title: str, steps: int, step: int, *, active: bool) -> None:
        self.console = Console(quiet=not active)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not active,
        )
        self.task = self.progress.add_task(title, total=steps, completed=step)

    def __enter__(self) -> "Report":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step)

    def row(self, loss: float, line: str) -> None:
        """The loss beside the bar, and a line above it where there is one."""
        self.progress.update(self.task, description=f"loss {loss:.3f}")
        if line:
            self.console.print(line)

    def end(self, title: str, rows: Sequence[tuple[str, str]], tables: Sequence[Table]) -> None:
        """The tables of the task, and one that sums up the run."""
        for shown in tables:
            self.console.print(shown)
        table = Table(title=title, show_header=False)
        table.add_column()
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)
