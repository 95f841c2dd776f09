"""The loop and what it asks of a task: one model, a report that hears everything, and silence without one."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from laplacianformer import classification, detection, sequences
from laplacianformer.classification._batches import open_loaders
from laplacianformer.classification._task import ClassificationTask
from laplacianformer.training import Loop, Session, Table
from laplacianformer.training._session import create_engine
from laplacianformer.weights import load_weights
from tests.detection import helpers as detection_helpers

from . import helpers


class Recorded:
    """A report that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.tables: Sequence[Table] = ()

    def start(self, title: str, steps: int, step: int) -> None:
        self.calls.append(("start", title, steps, step))

    def advance(self, step: int) -> None:
        self.calls.append(("advance", step))

    def row(self, loss: float, line: str) -> None:
        self.calls.append(("row", loss, line))

    def stop(self) -> None:
        self.calls.append(("stop",))

    def end(self, tables: Sequence[Table]) -> None:
        self.calls.append(("end",))
        self.tables = tables


def test_without_a_report_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    classification.train(helpers.tiny(tmp_path, optimise={"epochs": 2}), tmp_path / "run")
    assert "epoch" not in "".join(capfd.readouterr())
    recipe = detection_helpers.recipe(tmp_path / "detection.yaml", "retinanet", optimise={"epochs": 1})
    detection.train(recipe, tmp_path / "detection")
    printed = "".join(capfd.readouterr())
    assert "epoch" not in printed
    assert "AP" not in printed


def test_a_report_hears_every_step_row_and_result(tmp_path: Path) -> None:
    report = Recorded()
    recipe = helpers.tiny(tmp_path, optimise={"epochs": 2})
    result = classification.train(recipe, tmp_path / "run", report=report)
    assert report.calls[0] == ("start", "laplacianformer_nano", 8, 0)
    assert [call[1] for call in report.calls if call[0] == "advance"] == list(range(1, 9))
    rows = [call for call in report.calls if call[0] == "row"]
    assert [loss for _, loss, _ in rows] == [float(row["loss"]) for row in helpers.rows(tmp_path / "run")]
    assert [line[:13] for *_, line in rows if line] == ["epoch 1 of 2:", "epoch 2 of 2:"]
    assert report.calls[-2:] == [("stop",), ("end",)]
    attention, table = report.tables
    assert [row[0] for row in attention.rows] == ["stages.0.blocks.0.attention", "stages.1.blocks.0.attention"]
    assert attention.header == ("layer", "kernel mean", "query dependence", "contribution")
    assert dict(table.rows)["accuracy on held-out images"] == f"{result.accuracy:.2%}"
    assert dict(table.rows)["weights (averaged)"] == str(result.weights)

    again = Recorded()
    classification.train(recipe, tmp_path / "run", resume=True, report=again)
    assert again.calls == [("start", "laplacianformer_nano", 8, 8), ("stop",), ("end",)]


def test_a_report_hears_of_the_end_when_an_error_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(loop: Loop, batch: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "advance", broken)
    report = Recorded()
    with pytest.raises(KeyboardInterrupt):
        classification.train(helpers.tiny(tmp_path), tmp_path / "run", report=report)
    assert [call[0] for call in report.calls] == ["start", "stop"]


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_run_builds_its_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: float) -> None:
    built = []

    def create_model(name: str, **arguments: Any) -> Any:
        built.append(name)
        return create(name, **arguments)

    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", create_model)
    recipe = helpers.tiny(tmp_path, optimise={"epochs": 2, "ema_decay": average})
    result = classification.train(recipe, tmp_path / "run")
    assert built == ["laplacianformer_nano"]
    assert load_weights(result.weights).classes == ("class0", "class1", "class2")


def test_a_detector_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from laplacianformer.detection import _builders as module

    built = []

    def create_retinanet(*arguments: Any, **options: Any) -> Any:
        built.append(options)
        return create(*arguments, **options)

    create = module.BUILDERS["retinanet"]
    monkeypatch.setitem(module.BUILDERS, "retinanet", create_retinanet)
    recipe = detection_helpers.recipe(tmp_path / "recipe.yaml", "retinanet", optimise={"epochs": 1})
    result = detection.train(recipe, tmp_path / "run")
    assert len(built) == 1
    monkeypatch.undo()
    assert len(detection.load_detector(result.weights).classes) == 5


def test_a_task_is_complete_when_it_is_constructed(tmp_path: Path) -> None:
    """Without a loop: what it computes depends on nothing that is set later."""
    recipe = helpers.tiny(tmp_path, augment={"mixup": 0.0})
    session = Session(create_engine(recipe.run), tmp_path / "run")
    task = ClassificationTask(recipe, open_loaders(recipe), session)
    batch = next(iter(task.batches.epoch(0)))
    arguments, targets = task.prepare(batch)
    loss, numbers = task.loss(task.model(*arguments), targets)
    assert loss.isfinite()
    assert len(numbers) == len(task.numbers)
    scores = task.evaluate(task.model.eval())
    assert scores.keys() <= set(task.columns)
    task.save(session.weights, task.model.state_dict(), steps=0, ema_decay=None)
    loaded = load_weights(session.weights).model
    found = loaded.state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in task.model.state_dict().items())


@pytest.mark.parametrize("module", [classification, detection, sequences, sys.modules["laplacianformer.training"]])
def test_every_public_name_is_there(module: Any) -> None:
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018
