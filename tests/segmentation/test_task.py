"""A segmenter from a recipe: what it learns and writes, and that it resumes bit for bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors import safe_open

from laplacianformer._util.errors import InputError
from laplacianformer.cli import main
from laplacianformer.segmentation import Preparation, find_classes, load_segmenter
from laplacianformer.segmentation import _task as segmentation
from laplacianformer.segmentation._batches import open_segmentation
from laplacianformer.segmentation._evaluation import open_data
from laplacianformer.segmentation._labels import IGNORED
from laplacianformer.segmentation._recipe import load_recipe
from laplacianformer.segmentation._scores import PixelScores
from laplacianformer.segmentation._task import COLUMNS
from laplacianformer.training import Loop
from laplacianformer.training._optimiser import create_schedule
from tests.segmentation import helpers
from tests.training.helpers import rows, weights


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, segmentation.Result]:
    folder = tmp_path_factory.mktemp("segmentation")
    return folder, segmentation.train(helpers.recipe(folder / "recipe.yaml"), folder / "run")


def test_a_run_writes_rows_scores_and_a_file_that_says_what_it_is(finished: tuple[Path, segmentation.Result]) -> None:
    folder, result = finished
    assert (folder / "run" / "metrics.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    found = rows(folder / "run")
    assert [int(row["step"]) for row in found] == [1, 2, 3, 4]
    assert [row["mean_iou"] != "" for row in found] == [False, True, False, True], "after each epoch"
    assert all(0 < float(row["query_dependence"]) < 1 for row in found)
    scores = json.loads((folder / "run" / "scores.json").read_text())
    assert scores["mean_iou"] == result.scores.mean_iou
    assert list(scores["iou"]) == ["background", "circle", "rectangle", "triangle", "star", "ring"]
    with safe_open(result.weights, framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["task"], metadata["architecture"]) == ("segmentation", "semantic_fpn")
    assert yaml.safe_load(metadata["recipe"])["segmenter"]["name"] == "semantic_fpn"
    assert [entry["value"] for entry in json.loads(metadata["labels"])["classes"]] == list(range(6))
    assert {"commit", "date", "version", "metrics"} <= metadata.keys()


def interrupted_and_resumed(recipe: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> segmentation.Result:
    def interrupted(loop: Any, batch: Any) -> None:
        if loop.step == 3:
            raise KeyboardInterrupt
        advance(loop, batch)

    advance = Loop.advance
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            segmentation.train(recipe, folder)
    return segmentation.train(recipe, folder, resume=True)


def check_the_same(resumed: segmentation.Result, whole: segmentation.Result) -> None:
    assert rows(resumed.folder) == rows(whole.folder)
    expected, found = weights(whole.folder), weights(resumed.folder)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert resumed.scores == whole.scores


def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bits(
    finished: tuple[Path, segmentation.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = helpers.recipe(tmp_path / "recipe.yaml")
    check_the_same(interrupted_and_resumed(recipe, tmp_path / "run", monkeypatch), finished[1])


@pytest.mark.slow
def test_upernet_trains_resumes_and_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = helpers.recipe(tmp_path / "recipe.yaml", "upernet")
    whole = segmentation.train(recipe, tmp_path / "whole")
    check_the_same(interrupted_and_resumed(recipe, tmp_path / "run", monkeypatch), whole)
    given = ["--weights", str(whole.weights), "--data", "shapes", "--workers", "0", "--output", str(tmp_path)]
    main(["eval", *given])
    assert json.loads((tmp_path / "eval.json").read_text())["mean_iou"] == whole.scores.mean_iou
    assert "IoU of background" in capsys.readouterr().out


def test_eval_gives_the_numbers_of_the_training(
    finished: tuple[Path, segmentation.Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, result = finished
    given = ["--weights", str(result.weights), "--data", "shapes", "--workers", "0", "--output", str(tmp_path)]
    main(["eval", *given])
    said = json.loads((tmp_path / "eval.json").read_text())
    assert (said["mean_iou"], said["iou"]) == (result.scores.mean_iou, result.scores.iou)
    assert said["images"] == 3
    assert "IoU of background" in capsys.readouterr().out
    with Image.open(tmp_path / "segmentation.png") as sheet:
        assert min(sheet.size) > 240
    for option, reason in (
        (("--split", "x"), "no split 'x': expected one of train"),
        (("--without-attention", "off"), "these weights are a segmenter's"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["eval", *given, *option])
        assert stop.value.code == 2
        assert reason in capsys.readouterr().err


def test_eval_sees_images_in_windows_where_it_is_told_to(
    finished: tuple[Path, segmentation.Result], tmp_path: Path
) -> None:
    _, result = finished
    given = ["--weights", str(result.weights), "--data", "shapes", "--workers", "0", "--output", str(tmp_path)]
    loaded = load_segmenter(result.weights)
    for window, preparation in (("0", Preparation()), ("24", Preparation(window=24))):
        main(["eval", *given, "--window", window])
        counted, images = PixelScores(loaded.labels.names, torch.device("cpu")), open_data(loaded, "shapes", "val")
        for index in range(len(images)):
            image, indices = images.read(index)
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            counted.add(find_classes(loaded.model, pixels, preparation), torch.from_numpy(indices))
        said = json.loads((tmp_path / "eval.json").read_text())
        assert said["window"] == int(window)
        assert said["iou"] == pytest.approx(counted.compute().iou)


def test_the_recipe_for_ade20k_has_80000_steps() -> None:
    """Of 20,210 training images, in whole epochs."""
    optimise = load_recipe("ade20k-fpn").optimise
    assert abs(optimise.epochs * (20_210 // optimise.batch_size) - 80_000) < 1263


def test_the_schedule_is_a_power_of_a_line() -> None:
    optimise = load_recipe("ade20k-fpn").optimise
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
    schedule = create_schedule(optimiser, optimise, 1000)
    for step in (0, 15_750, 31_500, 62_999):
        schedule.step_update(step)
        assert optimiser.param_groups[0]["lr"] == pytest.approx(1e-4 * (1 - step / 63_000) ** 0.9)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("augment.scale=[2.0, 0.5]", r"augment\.scale must be the smaller factor first"),
        ("data.window_stride=8", r"data\.window_stride is the step of data\.window"),
        ("data.labels={classes: [a, a]}", r"the name 'a' appears twice"),
        ("segmenter.name=unet", r"segmenter\.name"),
        ("run.strategy=fsdp", "segmenters train with ddp"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        helpers.recipe(tmp_path / "recipe.yaml", overrides=[override])


def test_labels_of_a_file_become_part_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("ignore: 3\nclasses: [a, b]\n")
    recipe = helpers.recipe(tmp_path / "recipe.yaml", overrides=[f"data.labels={tmp_path / 'mine.yaml'}"])
    assert recipe.data.labels["ignore"] == [3]


def test_upernet_needs_two_images_per_process(tmp_path: Path) -> None:
    recipe = helpers.recipe(tmp_path / "recipe.yaml", "upernet", optimise={"batch_size": 1})
    with pytest.raises(InputError, match="batch norms of upernet need two"):
        open_segmentation(recipe)


# ---- wrong data ----


def test_what_is_wrong_with_single_files_is_named_and_trained_through_up_to_a_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = helpers.labelled_folder(tmp_path / "data", train=8)
    (folder / "train" / "3.png").write_bytes(b"not an image")
    Image.new("L", (48, 40), 200).save(folder / "train_labels" / "5.png")
    Image.new("L", (9, 9)).save(folder / "val_labels" / "1.png")
    data = {"corrupt_limit": 0.5}
    result = segmentation.train(helpers.on_files(tmp_path / "a.yaml", folder, data=data), tmp_path / "run")
    assert result.steps == 4
    for name, reason in (
        ("3.png", "not an image"),
        ("5.png", "has the values 200"),
        ("1.png", "its label map"),
    ):
        assert any(name in line and reason in line for line in caplog.text.splitlines()), name
    strict = helpers.on_files(tmp_path / "b.yaml", folder, data={"corrupt_limit": 0.0})
    with pytest.raises(InputError, match=r"data\.corrupt_limit\) can't be read; the last: "):
        segmentation.train(strict, tmp_path / "other")


def test_training_goes_on_where_nothing_is_labelled(tmp_path: Path) -> None:
    folder = helpers.labelled_folder(tmp_path / "data")
    for path in (folder / "train_labels").iterdir():
        Image.new("L", (48, 40), 9).save(path)
    result = segmentation.train(helpers.on_files(tmp_path / "a.yaml", folder), tmp_path / "run")
    assert result.steps == 2
    assert all(float(row["loss"]) == 0 for row in rows(tmp_path / "run"))
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())


def test_batches_hold_padded_crops_and_their_sizes(tmp_path: Path) -> None:
    recipe = helpers.recipe(tmp_path / "recipe.yaml", augment={"scale": [0.5, 0.5]})
    batch = next(open_segmentation(recipe).train.epoch(0))
    assert batch.images.shape == (4, 3, 40, 48)
    assert batch.sizes.tolist() == [[24, 24]] * 4
    assert (batch.targets[:, 24:] == IGNORED).all()
    assert np.unique(batch.targets[:, :24, :24]).max() < 6


@pytest.mark.slow
def test_a_short_training_learns_the_bands_of_the_images(tmp_path: Path) -> None:
    folder = helpers.labelled_folder(tmp_path / "data", train=16, val=2)
    optimise = {"epochs": 15, "lr": 5e-3, "ema_decay": 0.0}
    recipe = helpers.on_files(tmp_path / "a.yaml", folder, optimise=optimise, run={"eval_epochs": 15})
    result = segmentation.train(recipe, tmp_path / "run")
    assert result.scores.mean_iou > 80
