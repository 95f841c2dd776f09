"""Cases in a process of their own, which may die or hang in native code without taking the tests with it."""

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import signal
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tests.fuzz import outcome
from tests.fuzz.cases import run_case
from tests.fuzz.files import Samples

_GRACE = 5.0  # seconds that Python has to stop a case by itself and say where


class CaseProcess:
    """Runs cases one after the other in a process; one that died is replaced by the next case.

    The process comes from a server that has computed nothing: torch refuses gradients in a fork of a process that had
    some. With `fork` it is a fork of this process, with what was patched here, and without gradients.
    """

    def __init__(self, samples: Samples, *, fork: bool = False) -> None:
        self.samples, self.log, self.fork = samples, samples.folder / "stderr.txt", fork
        self.child: multiprocessing.process.BaseProcess | None = None

    def run(self, kind: str, seed: int, number: int) -> tuple[str, str]:
        """The class of a case, and what was said."""
        if self.child is None:
            self._start()
        assert self.child is not None
        self.pipe.send((kind, seed, number))
        try:
            if self.pipe.poll(outcome.SECONDS + _GRACE):
                found: tuple[str, str] = self.pipe.recv()
                return found
        except (EOFError, ConnectionResetError):
            self.child.join()
            code, said = self.child.exitcode or 0, self.log.read_text(errors="replace").strip()
            self.stop()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return outcome.CRASH, f"{how}\n{said}"
        self.stop()
        return outcome.HANG, "in native code, until it was killed"

    def stop(self) -> None:
        """No process is left."""
        if self.child is not None:
            self.child.kill()
            self.child.join()
            self.pipe.close()
            self.child = None

    def _start(self) -> None:
        context = multiprocessing.get_context("fork" if self.fork else "forkserver")
        if not self.fork:
            context.set_forkserver_preload([__name__])  # imports are paid once
        self.pipe, theirs = context.Pipe()
        inherited = self.pipe if self.fork else None
        self.child = context.Process(target=_serve, args=(theirs, inherited, self.samples, self.log), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of pytest-xdist, which the child never needs
            self.child.start()
        theirs.close()


def _serve(pipe: Connection, inherited: Connection | None, samples: Samples, log: Path) -> None:
    """Run what is asked for, until nobody asks any more. `inherited`: the parent's end, where a fork has a copy."""
    if inherited is not None:
        inherited.close()  # otherwise the end of the parent would not be seen
    torch.set_num_threads(1)  # threads don't survive a fork
    os.chdir(samples.folder)  # relative paths of options
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable(2)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(run_case(*pipe.recv(), samples))
