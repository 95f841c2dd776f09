"""metrics.csv after a resume: no row is repeated, missing or truncated."""

from pathlib import Path

from laplacianformer.training._metrics import Metrics

from . import helpers


def test_rows_after_the_checkpoint_and_truncated_rows_are_dropped(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, ("step", "loss"), 0, tensorboard=False)
    for step in (10, 20, 30):
        metrics.add({"step": step, "loss": 0.5})
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("1")  # the beginning of a row for step 100, when the machine went down
    metrics = Metrics(tmp_path, ("step", "loss"), 20, tensorboard=False)
    assert [row["step"] for row in helpers.rows(tmp_path)] == ["10", "20"]
    metrics.add({"step": 30, "loss": 0.25})
    assert [row["loss"] for row in helpers.rows(tmp_path)] == ["0.5", "0.5", "0.25"]


def test_a_new_run_starts_a_new_file(tmp_path: Path) -> None:
    Metrics(tmp_path, ("step", "loss"), 0, tensorboard=False).add({"step": 1})
    Metrics(tmp_path, ("step", "loss"), 0, tensorboard=False)
    assert helpers.rows(tmp_path) == []
