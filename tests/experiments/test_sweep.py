"""The runner of sweeps, on trainings of digits that last two steps."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from laplacianformer.errors import InputError
from laplacianformer.experiments import sweep as sweeps
from laplacianformer.experiments.rows import read_rows
from laplacianformer.experiments.sweep import Run, sweep

pytest.importorskip("lightning")

SHORT = (
    "optimise.epochs=1",
    "optimise.warmup_epochs=0",
    "optimise.batch_size=700",
    "run.tensorboard=false",
    "data.workers=0",
)


def short(seed: int, *overrides: str) -> Run:
    return Run("digits", {"kind": "short"}, (*SHORT, *overrides), seed)


def count_starts(monkeypatch) -> list[str]:
    started = []
    start = sweeps._start

    def counted(run, folder):
        process = start(run, folder)
        started.extend([run.key] if process else [])
        return process

    monkeypatch.setattr(sweeps, "_start", counted)
    return started


def test_rows_in_the_order_of_the_runs_and_nothing_trained_twice(tmp_path, monkeypatch) -> None:
    started = count_starts(monkeypatch)
    runs = [short(1), short(0)]
    rows = sweep(runs[1:], tmp_path / "results", tmp_path / "work")
    assert started == [runs[1].key]
    both = sweep(runs, tmp_path / "results", tmp_path / "work")
    assert started == [runs[1].key, runs[0].key]
    assert [row["seed"] for row in both] == ["1", "0"]
    assert both[1] == rows[0]
    assert 0 < float(rows[0]["accuracy"]) < 1
    assert rows[0]["kind"] == "short"
    assert rows[0]["commit"]
    curves = read_rows(tmp_path / "results" / "curves.csv")
    assert [(point["run"], float(point["epoch"])) for point in curves] == [(runs[1].key, 1.0), (runs[0].key, 1.0)]
    assert curves[0]["validation_accuracy"] == rows[0]["accuracy"]


def test_the_same_training_has_the_same_key_wherever_its_data_lie() -> None:
    run = Run("digits", {"a": 1}, ("x.y=1", "x.z=2"), 0, "here")
    assert run.key == Run("digits", {}, ("x.z=2", "x.y=1"), 0, "there").key
    assert len({run.key, short(0).key, short(1).key, short(0, "optimise.lr=0.1").key}) == 4


def test_a_training_that_fails_is_named_with_its_last_words(tmp_path) -> None:
    with pytest.raises(InputError, match=r"ended with code 2: .*optimise.lr.*log.txt"):
        sweep([short(0, "optimise.lr=-1")], tmp_path / "results", tmp_path / "work")
    assert read_rows(tmp_path / "results" / "runs.csv") == []


def test_a_run_that_another_process_trains_is_waited_for(tmp_path, monkeypatch) -> None:
    """The lock of a killed sweep's training, which lives on, is what `_start` meets."""
    run = short(0)
    folder = tmp_path / run.key
    folder.mkdir()
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert sweeps._start(run, folder) is None
    os.close(held)
    process = sweeps._start(run, folder)
    assert process is not None
    assert sweeps._start(run, folder) is None
    process.child.wait()
    os.close(process.lock)
    assert process.child.returncode == 0


def test_a_killed_sweep_goes_on_and_no_training_is_left_behind(tmp_path) -> None:
    code = (
        "from pathlib import Path; from laplacianformer.experiments.sweep import *; "
        f"sweep([Run('digits', {{}}, {(*SHORT, 'optimise.epochs=50')!r}, 0)], Path('results'), Path('work'))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "work" / Run("digits", {}, (*SHORT, "optimise.epochs=50"), 0).key / "metrics.csv"
    deadline = time.monotonic() + 120
    while not metrics.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert metrics.exists()
    parent.send_signal(signal.SIGINT)  # as Ctrl-C does
    assert parent.wait(timeout=60) != 0
    lock = os.open(metrics.parent, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free: its training has ended too
    os.close(lock)
