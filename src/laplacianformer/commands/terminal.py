"""What the commands share in writing to the terminal. Results go to the standard output, notes and
warnings to stderr."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, track
from rich.text import Text

Item = TypeVar("Item")


def show(*results: RenderableType) -> None:
    """Tables, panels and text, one below the other. Text is printed as it is, without markup or line breaks."""
    console = Console()
    for result in results:
        console.print(Text(result) if isinstance(result, str) else result, soft_wrap=isinstance(result, str))


def show_wide(table: RenderableType) -> None:
    """A table whose cells are not wrapped where the output is a file or a pipe, which takes lines of any length."""
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


def note(text: str) -> None:
    """A line to stderr."""
    Console(stderr=True, soft_wrap=True).print(Text(text))


def warn(text: str) -> None:
    """A line to stderr in red."""
    Console(stderr=True, soft_wrap=True).print(Text(text, "red"))


def progress(items: Iterable[Item], label: str) -> Iterable[Item]:
    """The items, with a progress bar on stderr where that is a terminal."""
    console = Console(stderr=True)
    return track(items, label, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def counter(label: str) -> Iterator[Callable[[int, int], None]]:
    """A function to be called with the numbers of finished items and of all, which moves a progress bar on stderr."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bars = Progress(*columns, console=Console(stderr=True))
    bar = bars.add_task(label, total=None)

    def count(finished: int, total: int) -> None:
        bars.start()  # not before: the thread that draws would disturb an experiment that measures time
        bars.update(bar, completed=finished, total=total)

    try:
        yield count
    finally:
        if bars.live.is_started:
            bars.stop()


def printable(path: Path) -> str:
    """A path with bytes that are not UTF-8 replaced, so that every terminal can print it."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")
