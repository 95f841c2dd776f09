"""Errors in what a user gave. The command line prints one as a single line and ends with exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InputError(ValueError):
    """A wrong recipe, a missing folder, a full disk: the message says what was given, what was expected, what to do."""


@contextmanager
def about(path: Path) -> Iterator[None]:
    """A block that uses what a file holds: the message of an InputError begins with the name of the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was no memory left: Python and every device of torch say so in words of their own."""
    words = ("out of memory", "not enough memory", "allocate memory", "can't allocate", "failed to allocate")
    said = str(error).lower()
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(word in said for word in words))
