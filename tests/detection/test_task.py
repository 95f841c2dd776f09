"""A detector from a recipe: what it learns and writes, and that it resumes bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from safetensors import safe_open

from laplacianformer._util.errors import InputError
from laplacianformer.cli import main
from laplacianformer.detection import _task as detection
from laplacianformer.detection._batches import open_detection
from laplacianformer.detection._recipe import load_recipe
from laplacianformer.detection._scores import NUMBERS
from laplacianformer.detection._task import COLUMNS, create_detector
from laplacianformer.detection._weights import detector_metadata
from laplacianformer.training import Loop
from laplacianformer.training import _checkpoint as checkpoint
from laplacianformer.training._optimiser import create_schedule
from tests.detection import helpers
from tests.helpers import with_local_weights
from tests.training.helpers import rows, weights


@pytest.fixture(scope="module", params=["mask_rcnn", "retinanet"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, detection.Result]:
    folder = tmp_path_factory.mktemp(request.param)
    recipe = helpers.recipe(folder / "recipe.yaml", request.param)
    return folder, detection.train(recipe, folder / "run")


@pytest.mark.slow
def test_a_run_writes_rows_scores_and_a_file_that_says_what_it_is(finished: tuple[Path, detection.Result]) -> None:
    folder, result = finished
    kinds = {"mask_rcnn": ("box", "mask"), "retinanet": ("box",)}[folder.name.rstrip("0")]
    assert (folder / "run" / "metrics.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    found = rows(folder / "run")
    assert [int(row["step"]) for row in found] == [1, 2, 3, 4]
    parts_of_loss = [name for name in COLUMNS if name.startswith("loss_")]
    for row in found:
        assert float(row["loss"]) == pytest.approx(sum(float(row[name]) for name in parts_of_loss), rel=1e-5)
        for column in ("kernel_mean", "query_dependence", "contribution"):
            assert 0 < float(row[column]) < 1, column
        assert (row["box_ap"] != "") == (row["step"] in ("2", "4")), "after each epoch"
    scores = json.loads((folder / "run" / "scores.json").read_text())
    assert scores == result.scores
    assert tuple(scores) == kinds
    assert all(tuple(numbers) == NUMBERS for numbers in scores.values())
    with safe_open(result.weights, framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["task"], metadata["weights"]) == ("detection", "exponential moving average")
    assert json.loads(metadata["classes"])[:2] == ["circle", "rectangle"]
    assert yaml.safe_load(metadata["recipe"])["detector"]["name"] == metadata["architecture"]
    assert {"commit", "date", "version", "metrics"} <= metadata.keys()


@pytest.mark.slow
def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bits(
    finished: tuple[Path, detection.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, whole = finished
    recipe = helpers.recipe(tmp_path / "recipe.yaml", folder.name.rstrip("0"))

    def interrupted(loop: Any, batch: Any) -> None:
        if loop.step == 3:
            raise KeyboardInterrupt
        advance(loop, batch)

    advance = Loop.advance
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            detection.train(recipe, tmp_path / "run")
    assert checkpoint.load(tmp_path / "run")["step"] == 3
    resumed = detection.train(recipe, tmp_path / "run", resume=True)
    assert rows(tmp_path / "run") == rows(folder / "run")
    expected, found = weights(folder / "run"), weights(tmp_path / "run")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert resumed.scores == whole.scores


def test_a_backbone_starts_from_weights_of_timm_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "resnet10t.c3_in1k"
    given = with_local_weights(monkeypatch, name, tmp_path / "weights.pth").state_dict()
    helpers.recipe(tmp_path / "recipe.yaml", "retinanet")
    changes = ["detector.backbone=resnet10t", "detector.backbone_args={}", f"model.weights={name}"]
    model: Any = create_detector(load_recipe(str(tmp_path / "recipe.yaml"), changes), 3)
    found = model.backbone.maps.model.state_dict()
    assert len(found) > 50
    assert all(torch.equal(found[key], given[key]) for key in found)
    said = detector_metadata(tmp_path / "model.safetensors", model, list("abc"), [1, 2, 3], {})
    assert json.loads(said["model_args"])["backbone_args"] == {}, "the file downloads nothing"


def test_eval_gives_the_numbers_of_the_training(
    finished: tuple[Path, detection.Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, result = finished
    main(
        [
            "eval",
            "--weights",
            str(result.weights),
            "--data",
            "shapes",
            "--workers",
            "0",
            "--output",
            str(tmp_path / "e"),
        ]
    )
    said = json.loads((tmp_path / "e" / "eval.json").read_text())
    assert {kind: said[kind] for kind in result.scores} == result.scores
    assert said["images"] == 4
    out = capsys.readouterr().out
    assert all(name.replace("_", " ") in out for name in NUMBERS)
    with Image.open(tmp_path / "e" / "detections.png") as sheet:
        assert min(sheet.size) > 300


def test_an_unknown_split_is_refused(
    finished: tuple[Path, detection.Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "eval",
                "--weights",
                str(finished[1].weights),
                "--data",
                "shapes",
                "--split",
                "x",
                "--output",
                str(tmp_path),
            ]
        )
    assert stop.value.code == 2
    assert "no split 'x': expected one of train, validation, val" in capsys.readouterr().err


def test_a_detector_is_not_evaluated_without_attention(
    finished: tuple[Path, detection.Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--weights", str(finished[1].weights), "--data", "shapes", "--output", str(tmp_path / "e")]
    with pytest.raises(SystemExit) as stop:
        main(["eval", *given, "--without-attention", "off"])
    assert stop.value.code == 2
    assert "--without-attention is for classifiers and sequence encoders" in capsys.readouterr().err


@pytest.mark.slow
def test_a_short_training_learns_to_find_shapes(tmp_path: Path) -> None:
    """The loss falls by a quarter, and some boxes are right; a random detector has AP 0."""
    recipe = helpers.recipe(
        tmp_path / "recipe.yaml",
        data={"shapes_train": 112, "shapes_val": 16, "short_side": [48], "long_side": 48},
        augment={"colour": 0.0, "zoom_out": 0.0, "crop": 0.0, "flip": 0.5},
        optimise={"epochs": 6, "batch_size": 8, "lr": 2e-3, "ema_decay": 0.95, "warmup_epochs": 0.5},
        run={"log_steps": 14, "eval_epochs": 6, "checkpoint_steps": 1000},
    )
    result = detection.train(recipe, tmp_path / "run")
    losses = [float(row["loss"]) for row in rows(tmp_path / "run")]
    assert losses[-1] < 0.75 * losses[0]
    assert (result.scores["box"]["AP50"] or 0) > 1
    assert (result.scores["mask"]["AP50"] or 0) > 0.5


def test_the_schedule_is_that_of_the_recipe() -> None:
    recipe = load_recipe("coco")
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
    schedule = create_schedule(optimiser, recipe.optimise, 1000, recipe.optimise.lr_steps)
    rates = {}
    for step in (0, 35, 70, 7999, 8000, 10999, 11000, 11999):
        schedule.step_update(step)
        rates[step] = optimiser.param_groups[0]["lr"]
    assert rates[0] < rates[35] < rates[70]
    assert [rates[step] for step in (70, 7999)] == pytest.approx([1e-4] * 2)
    assert [rates[step] for step in (8000, 10999)] == pytest.approx([1e-5] * 2)
    assert [rates[step] for step in (11000, 11999)] == pytest.approx([1e-6] * 2)


def test_scores_of_a_detector_that_were_made_by_hand_get_one_clear_line(tmp_path: Path) -> None:
    recipe = helpers.recipe(tmp_path / "recipe.yaml", "retinanet", optimise={"epochs": 1})
    detection.train(recipe, tmp_path / "run")
    state = checkpoint.load(tmp_path / "run")
    for wrong in ({"scores": 3}, {"scores": {"box": 3}}, {"scores": {"box": {"AP": "x"}}}, {"best": "x"}, {"best": []}):
        checkpoint.save(tmp_path / "run", state | wrong)
        with pytest.raises(InputError, match=r"scores in the checkpoint of .* can't be used"):
            detection.train(recipe, tmp_path / "run", resume=True)


# ---- wrong data ----


def on_files(path: Path, folder: Path, **data: Any) -> Any:
    keys = {"reader": "coco", "root": str(folder), **data}
    return helpers.recipe(path, "retinanet", data=keys, optimise={"epochs": 1, "ema_decay": 0.0})


def test_unreadable_images_are_named_and_replaced_up_to_a_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = helpers.coco_folder(tmp_path / "data")
    (folder / "train" / "train-00003.png").write_bytes(b"not an image")
    (folder / "val" / "val-00002.png").unlink()
    result = detection.train(on_files(tmp_path / "a.yaml", folder, corrupt_limit=0.3), tmp_path / "run")
    assert result.steps == 2
    assert "train-00003.png of" in caplog.text
    assert "there is no" in caplog.text
    assert "val-00002.png" in caplog.text
    with pytest.raises(InputError, match=r"data\.corrupt_limit\) can't be read; the last: .*train-00003\.png"):
        detection.train(on_files(tmp_path / "b.yaml", folder, corrupt_limit=0.0), tmp_path / "other")


def test_training_works_on_images_without_objects(tmp_path: Path) -> None:
    folder = helpers.coco_folder(tmp_path / "data")
    helpers.change(folder, "train", lambda tree: tree.update(annotations=[]))
    result = detection.train(on_files(tmp_path / "a.yaml", folder), tmp_path / "run")
    assert result.steps == 2
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())


def test_other_categories_in_validation_are_refused(tmp_path: Path) -> None:
    folder = helpers.coco_folder(tmp_path / "data", train=4, val=1)
    helpers.change(folder, "val", lambda tree: tree["categories"].append({"id": 50, "name": "more"}))
    with pytest.raises(InputError, match=r"instances_train\.json and .*instances_val\.json have different categories"):
        open_detection(on_files(tmp_path / "a.yaml", folder))


WRONG = {
    "no folder": (["--recipe", "pennfudan-maskrcnn"], "the reader 'coco' needs a folder: give --data DIR"),
    "backbone": (
        ["--recipe", "shapes-maskrcnn", "detector.backbone=magic"],
        "can't create the detector mask_rcnn on magic",
    ),
    "argument": (["--recipe", "shapes-maskrcnn", "detector.args.magic=1"], "MaskRCNN has no option magic"),
    "key": (["--recipe", "shapes-maskrcnn", "detector.frozen_stage=1"], "did you mean 'frozen_stages'"),
    "section": (["--recipe", "shapes-maskrcnn", "model.name=x"], "unknown key model"),
    "sharded": (["--recipe", "shapes-maskrcnn", "run.strategy=fsdp"], "detectors train with ddp"),
    "weights": (["--recipe", "shapes-maskrcnn", "detector.weights=none.safetensors"], "none.safetensors is not there"),
    "common name": (["--recipe", "shapes-maskrcnn", "--weights", "none.safetensors"], "none.safetensors is not there"),
    "other weights": (
        ["--recipe", "shapes-maskrcnn", "--weights", "resnet10t.c3_in1k"],
        "detector.weights=resnet10t.c3_in1k are those of another model than detector.backbone=laplacianformer_nano",
    ),
    "decay": (
        [
            "--recipe",
            "shapes-maskrcnn",
            "detector.backbone=resnet18",
            "detector.backbone_args={}",
            "optimise.layer_decay=0.5",
        ],
        "optimise.layer_decay=0.5: the features of resnet18 have no layers",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_ends_with_one_line_and_code_2_and_writes_nothing(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = WRONG[what]
    fewer = [] if what == "no folder" else ["data.shapes_train=16", "data.shapes_val=1", "run.devices=1"]
    with pytest.raises(SystemExit) as stop:
        main(["train", "--output", str(tmp_path / "run"), *arguments, *fewer])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()
