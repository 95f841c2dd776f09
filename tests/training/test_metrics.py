"""metrics.csv after a resume: no row is repeated, missing or truncated."""

from pathlib import Path

import pytest

from laplacianformer._util.errors import InputError
from laplacianformer.plots import draw_training
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


@pytest.mark.parametrize("number", ["1" + 400 * "0", "-1e400"])
def test_a_number_that_no_float_holds_is_refused(tmp_path: Path, number: str) -> None:
    """Infinity and NaN are numbers that a run may have written."""
    (tmp_path / "metrics.csv").write_text(f"step,loss\n1,inf\n2,nan\n3,{number}\n")
    with pytest.raises(InputError, match=r"loss in line 4 is larger than any float, '-?1") as refused:
        Metrics(tmp_path, ("step", "loss"), 5, tensorboard=False)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400 + len(str(tmp_path))
    with pytest.raises(InputError, match="loss in line 4 is larger than any float"):
        draw_training(tmp_path / "metrics.csv", tmp_path / "curve.png")
