"""What `laplacianformer train` shows: a progress bar, one line per evaluation, tables at the end."""

from collections.abc import Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from laplacianformer.commands import terminal
from laplacianformer.training import Table


class ProgressReport:
    """A `laplacianformer.training.Report` for the terminal."""

    def __init__(self) -> None:
        self.console = terminal.console()
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.bar = self.progress.add_task("", visible=False)

    def start(self, title: str, steps: int, step: int) -> None:
        self.progress.reset(self.bar, description=title, total=steps, completed=step, visible=True)
        self.progress.start()

    def advance(self, step: int) -> None:
        self.progress.update(self.bar, completed=step)

    def row(self, loss: float, line: str) -> None:
        """The loss beside the bar, and a line above it where there is one."""
        self.progress.update(self.bar, description=f"loss {loss:.3f}")
        if line:
            self.console.print(terminal.plain(line), soft_wrap=True)

    def stop(self) -> None:
        self.progress.stop()

    def end(self, tables: Sequence[Table]) -> None:
        for table in tables:
            self.console.print(_rich(table))


def _rich(table: Table) -> RichTable:
    """Labels to the left, numbers under a header to the right; long paths are folded."""
    columns = len(table.rows[0]) if table.rows else len(table.header)
    shown = RichTable(title=table.title, show_header=bool(table.header))
    for index in range(columns):
        name = table.header[index] if table.header else ""
        number = bool(table.header) and index > 0
        shown.add_column(name, justify="right" if number else "left", no_wrap=index == 0, overflow="fold")
    for row in table.rows:
        shown.add_row(*(terminal.plain(cell) for cell in row))
    return shown
