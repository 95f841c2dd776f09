"""How all commands write to the terminal. Results go to the standard output, notes and
warnings to stderr.

Names and metadata may hold control characters. No console of this module prints one, whatever it is given; where they
are part of a line or a cell, `plain` also keeps them from beginning another line.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, track
from rich.text import Text

from laplacianformer._util.text import printable, to_json

Item = TypeVar("Item")


class _Escaped:
    """What is printed, with the control characters in its text escaped."""

    def __init__(self, content: ConsoleRenderable) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, keep="\n"))


class _Escape(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(content) for content in renderables]


def console(**options: Any) -> Console:
    """The only way to a terminal."""
    made = Console(**options)
    made.push_render_hook(_Escape())
    return made


def plain(text: object, style: str = "") -> Text:
    """A name, a class, a path: one line without markup."""
    return Text(printable(text), style)


class _EscapingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n")


def escape_log() -> None:
    """Escape also what the log writes to stderr where nobody has set up another one: names of unreadable images."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_EscapingFormatter())


def show_json(value: Any) -> None:
    """JSON to the standard output, and nothing else."""
    print(to_json(value))


def show(*results: RenderableType) -> None:
    """Tables, panels and text, one below the other. Text is printed as one line, without markup."""
    output = console()
    for result in results:
        output.print(plain(result) if isinstance(result, str) else result, soft_wrap=isinstance(result, str))


def show_wide(table: RenderableType) -> None:
    """A table whose cells are not wrapped where the output is a file or a pipe, which takes lines of any length."""
    console(width=None if sys.stdout.isatty() else 10_000).print(table)


def note(text: str) -> None:
    """A line to stderr."""
    console(stderr=True, soft_wrap=True).print(plain(text))


def warn(text: str) -> None:
    """A line to stderr in red."""
    console(stderr=True, soft_wrap=True).print(plain(text, "red"))


def progress(items: Iterable[Item], label: str) -> Iterable[Item]:
    """The items, with a progress bar on stderr where that is a terminal."""
    output = console(stderr=True)
    return track(items, label, console=output, transient=True, disable=not output.is_terminal)


@contextmanager
def counter(label: str) -> Iterator[Callable[[int, int], None]]:
    """A function to be called with the numbers of finished items and of all, which moves a progress bar on stderr."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bars = Progress(*columns, console=console(stderr=True))
    bar = bars.add_task(label, total=None)

    def count(finished: int, total: int) -> None:
        bars.start()  # not before: the thread that draws would disturb an experiment that measures time
        bars.update(bar, completed=finished, total=total)

    try:
        yield count
    finally:
        if bars.live.is_started:
            bars.stop()
