"""`make demo`, with a training that is over at once."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from laplacianformer.data import Batch
from laplacianformer.data import _images as images
from tests.helpers import INPUT, picture, save_small
from tests.plots.helpers import check_png, metrics


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    return importlib.import_module("digits")


def write_run(output):
    """What a training leaves in its folder."""
    output.mkdir(parents=True)
    save_small(output / "model.safetensors")
    metrics(output / "metrics.csv")


def held_out(loaded, data):
    """30 images in two batches."""
    assert data == "digits"
    transform = images.to_input(INPUT)
    inputs = torch.stack([transform(picture(number)) for number in range(30)])
    return [Batch(*pair) for pair in zip(inputs.split(20), (torch.arange(30) % 7).split(20), strict=True)]


@pytest.mark.slow
def test_the_demo_draws_a_training_and_prints_where_everything_is(demo, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "train", write_run)
    monkeypatch.setattr(demo, "open_batches", held_out)
    output = tmp_path / "new" / "demo"
    demo.main(["--output", str(output)])
    names = ["attention.png", "confusion.png", "predictions.png", "training.png"]
    assert sorted(path.name for path in output.glob("*.png")) == names
    out = capsys.readouterr().out
    assert "of 30 (" in out
    for name in names:
        check_png(output / name)
        assert name in out.replace("\n", "")


def test_the_demo_trains_as_the_command_does_and_starts_anew(demo, tmp_path, monkeypatch):
    (tmp_path / "checkpoint.pt").touch()
    (tmp_path / "checkpoint.previous.pt").touch()
    called = []
    monkeypatch.setattr(demo.cli, "main", called.append)
    demo.train(tmp_path)
    assert called == [["train", "--recipe", "digits", "--output", str(tmp_path)]]
    assert not list(tmp_path.glob("checkpoint*.pt"))


def test_the_demo_says_that_it_can_not_draw_before_it_trains(demo, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit) as stop:
        demo.main(["--output", str(tmp_path / "demo")])
    assert stop.value.code == 2
    assert "matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_the_demo_says_that_it_can_not_write_before_it_trains(demo, tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stop:
        demo.main(["--output", str(tmp_path / "file" / "demo")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("file/demo: Not a directory\n")
