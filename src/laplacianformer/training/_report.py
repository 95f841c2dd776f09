"""What a run tells while it goes on. The library prints nothing: whoever starts a run may pass a `Report` that does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Table:
    """Text for people, in rows; `header` is empty where columns need no names."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Report(Protocol):
    """Called in the first process only."""

    def start(self, title: str, steps: int, step: int) -> None:
        """Step `step` of `steps` is done: 0, or that of the checkpoint that the run continues from."""

    def advance(self, step: int) -> None:
        """Another step is done."""

    def row(self, loss: float, line: str) -> None:
        """A row of metrics was written; `line` sums it up where there was an evaluation, and is empty otherwise."""

    def stop(self) -> None:
        """The steps are over: all of them, or an error ended the run."""

    def end(self, tables: Sequence[Table]) -> None:
        """The weights are written; `tables` sum up the run."""


class Silent:
    """A report to nobody."""

    def start(self, title: str, steps: int, step: int) -> None: ...

    def advance(self, step: int) -> None: ...

    def row(self, loss: float, line: str) -> None: ...

    def stop(self) -> None: ...

    def end(self, tables: Sequence[Table]) -> None: ...
