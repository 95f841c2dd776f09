"""Ctrl+C while a command starts.

The package imports torch, which takes seconds, before the command line can catch anything, and libraries swallow an
exception in the middle of their imports. Importing this module lets the signal end the process at once instead, as it
ends programs that have not begun; `as_exceptions` is for when the command has.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path


def is_command(arguments: list[str]) -> bool:
    """Whether the process is `laplacianformer ...` or `python -m laplacianformer ...`, and not a program that imports
    the package."""
    started = [Path(argument).stem for argument in arguments[:2]]
    modules = {module for option, module in pairwise(arguments) if option == "-m"}
    return "laplacianformer" in started or not modules.isdisjoint(("laplacianformer", "laplacianformer.__main__"))


@contextmanager
def as_exceptions() -> Iterator[None]:
    """A block in which Ctrl+C raises KeyboardInterrupt; also if a library turns it into another error on its way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def handler(number: int, frame: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    except Exception:
        if came:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)


if is_command(sys.orig_argv) and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
