"""Sweeps of trainings: a queue of runs, each resumable, and one row per run in runs.csv.

A row is added when its run ends, and a run that has a row is not trained again: a sweep that was killed continues where
it stopped. Several sweeps may share a table; what they have in common is trained once. Each run is a process of
`laplacianformer train` with one thread, and by default there are as many at a time as cores.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from laplacianformer._util.errors import InputError
from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.frame import Progress, silent
from laplacianformer.experiments.rows import Row, read_rows, write_rows

PROGRAM = (sys.executable, "-m", "laplacianformer")
THREADS = 1  # per training: several trainings use several cores better than one training does
PAUSE = 0.2  # seconds between two checks of the running processes
SCORES = ("validation_", "box_", "mask_")  # prefixes of the columns of metrics.csv that are measured on held-out images
# The same model under another name: `LaplacianAttention` had the options of the comparisons itself once. Leaving it out
# of the key keeps the rows of earlier trainings valid, which computed the same numbers.
ABLATION = "model.args.attention=ablation"


@dataclass(frozen=True)
class Training:
    """One training: a recipe with overrides and a seed, and the columns that label it in a table."""

    recipe: str
    labels: Row
    overrides: tuple[str, ...]
    seed: int
    data: str | None = None

    @property
    def arguments(self) -> list[str]:
        """The command line of `laplacianformer`, without its output folder."""
        data = [] if self.data is None else ["--data", self.data]
        return ["train", "--recipe", self.recipe, *data, "--resume", *self.overrides, f"run.seed={self.seed}"]

    @property
    def key(self) -> str:
        """A short hash, the same for the same training, wherever its data are stored."""
        overrides = sorted(override for override in self.overrides if override != ABLATION)
        identity = json.dumps([self.recipe, overrides, self.seed])
        return hashlib.sha256(identity.encode()).hexdigest()[:10]


def sweep(
    runs: Sequence[Training],
    results: Path,
    work: Path,
    processes: int | None = None,
    *,
    weights: bool = False,
    progress: Progress = silent,
) -> list[Row]:
    """Train what has no row yet in results/runs.csv, and return the rows of all runs with their labels, in order.

    Args:
        runs: the trainings.
        results: folder of runs.csv, and of curves.csv with the held-out metrics after every epoch.
        work: folder with one subfolder per run: metrics, checkpoint, weights, log.txt.
        processes: trainings at a time; by default one per core.
        weights: also train runs that have a row but no weights in `work`.
        progress: called at the start and after every training.
    """
    table = results / "runs.csv"
    recorded = {row["run"] for row in read_rows(table)}
    distinct = {run.key: run for run in runs}  # the same training may be listed under two labels
    missing = [
        run for key, run in distinct.items() if key not in recorded or (weights and not weights_of(run, work).exists())
    ]
    finished = len(distinct) - len(missing)
    progress(finished, len(distinct))
    for run, seconds in _finished(missing, work, processes or os.cpu_count() or 1):
        _record(run, work / run.key, results, seconds)
        finished += 1
        progress(finished, len(distinct))
    rows = {row["run"]: row for row in read_rows(table)}
    return [run.labels | rows[run.key] for run in runs]


def curves(runs: Sequence[Training], results: Path) -> list[Row]:
    """The held-out metrics of these runs after every epoch, with their labels."""
    points = read_rows(results / "curves.csv")
    return [run.labels | point for run in runs for point in points if point["run"] == run.key]


def weights_of(run: Training, work: Path) -> Path:
    """The weights file that a training writes."""
    return work / run.key / "model.safetensors"


def _finished(runs: Sequence[Training], work: Path, processes: int) -> Iterator[tuple[Training, float | None]]:
    """Each run when it ends, with its CPU seconds, or None where it continued an earlier process.

    The first failure is raised after all others have ended.
    """
    waiting, running, failures = list(runs), list[_Process](), list[InputError]()
    try:
        while waiting or running:
            for run in list(waiting):
                if len(running) < processes and (process := _start(run, work / run.key)):
                    running.append(process)
                    waiting.remove(run)
            for process in list(running):
                if process.ended():
                    running.remove(process)
                    if failure := process.close():
                        failures.append(failure)
                    else:
                        yield process.run, process.cpu_seconds
            time.sleep(PAUSE)
        if failures:
            raise failures[0]
    finally:
        for process in running:
            process.child.terminate()
        for process in running:
            process.child.wait()
            os.close(process.lock)


@dataclass
class _Process:
    run: Training
    folder: Path
    child: "subprocess.Popen[bytes]"
    lock: int
    resumed: bool
    cpu_seconds: float | None = None  # of all the training; other work on the machine changes it less than wall time

    def ended(self) -> bool:
        process, status, usage = os.wait4(self.child.pid, os.WNOHANG)
        if process:
            self.child.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_seconds = None if self.resumed else usage.ru_utime + usage.ru_stime
        return bool(process)

    def close(self) -> InputError | None:
        """Release the lock, and return what went wrong, if anything did."""
        os.close(self.lock)
        if not self.child.returncode:
            return None
        log = self.folder / "log.txt"
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        return InputError(f"a training ended with code {self.child.returncode}: {last[0]} (full log: {log})")


def _start(run: Training, folder: Path) -> _Process | None:
    """A process that trains, or None while a process of another sweep trains the same run.

    The child inherits the lock: if a sweep is killed and its trainings are not, the next sweep waits for them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    resumed = (folder / "checkpoint.pt").exists()
    command = [*PROGRAM, *run.arguments, "--output", str(folder)]
    with (folder / "log.txt").open("ab") as log:
        child = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": str(THREADS)},
            pass_fds=[lock],
        )
    return _Process(run, folder, child, lock, resumed)


def _record(run: Training, folder: Path, results: Path, cpu_seconds: float | None) -> None:
    steps = read_rows(folder / "metrics.csv")
    names = [name for name in steps[0] if name.startswith(SCORES)]
    curve = [{name: step[name] for name in ("epoch", *names)} for step in steps if step[names[0]]]
    row = {
        "run": run.key,
        "seed": run.seed,
        **{name: curve[-1][name] for name in names},
        "recipe": run.recipe,
        "overrides": " ".join(run.overrides),
        "cpu_seconds": "" if cpu_seconds is None else round(cpu_seconds, 1),
        **provenance(threads=THREADS),
    }
    points = [{"run": run.key, "seed": run.seed, **point} for point in curve]
    with _locked(results):  # another sweep may write to the same table
        for name, more in (("curves.csv", points), ("runs.csv", [row])):
            kept = [old for old in read_rows(results / name) if old["run"] != run.key]
            write_rows(results / name, [*kept, *more])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
