"""The runner of sweeps: its queue with a stand-in for `laplacianformer train`, and once with the real one."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laplacianformer._util.errors import InputError
from laplacianformer.experiments import sweep as sweeps
from laplacianformer.experiments import trainings
from laplacianformer.experiments.rows import read_rows
from laplacianformer.experiments.sweep import Training, curves, sweep


def run_of(seed: int, *overrides: str) -> Training:
    return Training("digits", {"kind": "short"}, overrides, seed)


def starts(folder: Path, run: Training) -> int:
    return len((folder / "work" / run.key / "started").read_text().splitlines())


@pytest.mark.usefixtures("stand_in")
def test_rows_in_the_order_of_the_runs_and_nothing_trained_twice(tmp_path) -> None:
    runs = [run_of(seed) for seed in (3, 1, 2)]
    (second,) = sweep(runs[1:2], tmp_path / "results", tmp_path / "work")
    rows = sweep(runs, tmp_path / "results", tmp_path / "work", processes=2)
    assert [row["validation_accuracy"] for row in rows] == ["0.32", "0.12", "0.22"]
    assert rows[1] == second
    assert [starts(tmp_path, run) for run in runs] == [1, 1, 1]
    assert rows[0]["kind"] == "short"
    assert rows[0]["commit"]
    points = curves(runs, tmp_path / "results")
    assert [(point["epoch"], point["validation_accuracy"]) for point in points if point["seed"] == "3"] == [
        ("1.0", "0.31"),
        ("2.0", "0.32"),
    ]
    assert len(points) == 6
    assert points[0]["kind"] == "short"


@pytest.mark.usefixtures("stand_in")
def test_two_sweeps_share_what_they_have_in_common_each_under_its_own_label(tmp_path) -> None:
    first, second = Training("digits", {"kernel": "laplacian"}, (), 0), Training("digits", {"solver": "newton"}, (), 0)
    (row,) = sweep([first], tmp_path / "results", tmp_path / "work")
    (same,) = sweep([second], tmp_path / "results", tmp_path / "work")
    assert starts(tmp_path, first) == 1
    assert "kernel" not in same
    assert row == {"kernel": "laplacian"} | {key: value for key, value in same.items() if key != "solver"}


@pytest.mark.usefixtures("stand_in")
def test_progress_is_reported_to_the_callback_and_nothing_is_printed(tmp_path, capfd) -> None:
    seen: list[tuple[int, int]] = []
    runs = [run_of(seed) for seed in (0, 1, 1, 2)]
    sweep(runs[:1], tmp_path / "results", tmp_path / "work")
    sweep(runs, tmp_path / "results", tmp_path / "work", processes=1, progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("stand_in")
def test_weights_that_were_deleted_are_trained_again_where_they_are_needed(tmp_path) -> None:
    run = run_of(0)
    sweep([run], tmp_path / "results", tmp_path / "work")
    sweep([run], tmp_path / "results", tmp_path / "work")
    assert starts(tmp_path, run) == 1
    sweep([run], tmp_path / "results", tmp_path / "work", weights=True)
    assert starts(tmp_path, run) == 2


@pytest.mark.usefixtures("stand_in")
def test_a_row_has_the_cpu_seconds_of_its_training_which_does_not_count_when_it_waits(tmp_path) -> None:
    waiting, working = sweep([run_of(0, "seconds=0.5"), run_of(1, "busy=0.5")], tmp_path / "results", tmp_path / "work")
    assert float(waiting["cpu_seconds"]) < 0.4
    assert 0.5 <= float(working["cpu_seconds"]) < 0.9


@pytest.mark.usefixtures("stand_in")
def test_what_a_training_took_is_not_known_when_an_earlier_process_began_it(tmp_path) -> None:
    runs = [run_of(0), run_of(1)]
    folder = tmp_path / "work" / runs[0].key
    folder.mkdir(parents=True)
    (folder / "checkpoint.pt").touch()
    rows = sweep(runs, tmp_path / "results", tmp_path / "work")
    assert rows[0]["cpu_seconds"] == ""
    (known,) = trainings.cpu_seconds(rows, "kind", "short")
    assert known == float(rows[1]["cpu_seconds"])


@pytest.mark.usefixtures("stand_in")
def test_no_more_processes_than_asked_for(tmp_path, monkeypatch) -> None:
    running, most = 0, 0
    start, close = sweeps._start, sweeps._Process.close

    def counted_start(run, folder):
        nonlocal running, most
        process = start(run, folder)
        running += process is not None
        most = max(most, running)
        return process

    def counted_close(process):
        nonlocal running
        running -= 1
        return close(process)

    monkeypatch.setattr(sweeps, "_start", counted_start)
    monkeypatch.setattr(sweeps._Process, "close", counted_close)
    sweep([run_of(seed, "seconds=0.1") for seed in range(5)], tmp_path / "results", tmp_path / "work", processes=2)
    assert most == 2


def test_the_same_training_has_the_same_key_wherever_its_data_are() -> None:
    run = Training("digits", {"a": 1}, ("x.y=1", "x.z=2"), 0, "here")
    assert run.key == Training("digits", {}, ("x.z=2", "x.y=1"), 0, "there").key
    assert len({run.key, run_of(0).key, run_of(1).key, run_of(0, "optimise.lr=0.1").key}) == 4


@pytest.mark.usefixtures("stand_in")
def test_a_failed_training_is_reported_with_its_last_line_after_all_others_have_their_rows(tmp_path) -> None:
    runs = [run_of(0), run_of(1, "bad=word"), run_of(2)]
    with pytest.raises(InputError, match=r"ended with code 1: bad=word is not known \(full log: .*log.txt\)"):
        sweep(runs, tmp_path / "results", tmp_path / "work", processes=1)
    assert [row["seed"] for row in read_rows(tmp_path / "results" / "runs.csv")] == ["0", "2"]


@pytest.mark.usefixtures("stand_in")
def test_a_run_that_another_process_trains_is_waited_for(tmp_path) -> None:
    run = run_of(0, "seconds=0.3")
    process = sweeps._start(run, tmp_path / "work" / run.key)
    assert process is not None
    os.close(process.lock)  # as if the sweep that started it was killed: the training keeps the lock
    assert sweeps._start(run, tmp_path / "work" / run.key) is None
    sweep([run], tmp_path / "results", tmp_path / "work")
    assert process.child.poll() == 0


@pytest.mark.slow
def test_a_sweep_that_is_stopped_leaves_no_training_behind(tmp_path, stand_in) -> None:
    run = run_of(0, "seconds=100")
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell may have it ignored
        "from pathlib import Path; from laplacianformer.experiments import sweep; "
        f"sweep.PROGRAM = {(sys.executable, str(stand_in))!r}; "
        f"sweep.sweep([sweep.Training('digits', {{}}, {run.overrides!r}, 0)], Path('results'), Path('work'))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL)
    started = tmp_path / "work" / run.key / "started"
    deadline = time.monotonic() + 200  # a busy machine takes long to import torch
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)  # as Ctrl-C does
    assert parent.wait(timeout=60) != 0
    lock = os.open(started.parent, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free: the training has ended too
    os.close(lock)
