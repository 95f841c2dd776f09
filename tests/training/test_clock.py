"""The columns images_per_second and data_wait."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laplacianformer.classification import _task as classification
from laplacianformer.data import _memory as memory
from laplacianformer.training import _clock as clock

from . import helpers


def test_throughput_counts_all_time_except_that_of_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that only these advance: 3 s for a batch, 1 s for a step, 100 s for an evaluation."""
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])

    def slow(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def slowed(*arguments: Any, **options: Any) -> Any:
            now[0] += seconds
            return function(*arguments, **options)

        return slowed

    monkeypatch.setattr(memory, "crop_and_flip", slow(3, memory.crop_and_flip))
    task = classification.ClassificationTask
    monkeypatch.setattr(task, "loss", slow(1, task.loss))
    monkeypatch.setattr(memory.MemoryEvaluation, "__iter__", slow(100, memory.MemoryEvaluation.__iter__))
    recipe = helpers.tiny(tmp_path, optimise={"epochs": 2})
    classification.train(recipe, tmp_path / "run")
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["3", "4", "6", "8"]
    assert {(row["images_per_second"], row["data_wait"]) for row in rows} == {("1.5", "0.75")}
