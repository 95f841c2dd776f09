"""`laplacianformer detect`: what is drawn and written, and what is reported of images that can't be read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.cli import main
from laplacianformer.detection import save_detector
from laplacianformer.detection._masks import decode
from tests.detection import helpers
from tests.helpers import picture, save_small

NAMES = ("cat", "dog", "owl")


@pytest.fixture(scope="module", params=["mask_rcnn", "retinanet"])
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, without a lowest score: they find something in any image."""
    threshold = {"box_score_thresh": 0.0} if request.param == "mask_rcnn" else {"score_thresh": 0.0}
    path: Path = tmp_path_factory.mktemp("weights") / f"{request.param}.safetensors"
    model = helpers.small(request.param, **threshold)
    save_detector(path, model, classes=NAMES, category_ids=[3, 7, 11])
    return path


def run(*arguments: Any) -> int:
    """The exit code."""
    try:
        main(["detect", *(str(argument) for argument in arguments)])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_objects_are_drawn_and_written(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("one.png", "a/one.png", "two.jpg"):
        picture(1, (90, 60)).save(tmp_path / name)
    names = [tmp_path / name for name in ("one.png", "a/one.png", "two.jpg")]
    assert run("--weights", weights, *names, "--threshold", 0, "--output", tmp_path / "out") == 0
    said = json.loads((tmp_path / "out" / "detections.json").read_text())
    drawn = [Path(entry["drawn"]).name for entry in said["images"]]
    assert drawn == ["one.png", "one-2.png", "two.png"], "images of the same name don't replace each other"
    first = said["images"][0]
    assert (first["width"], first["height"]) == (90, 60)
    assert first["objects"]
    for one in first["objects"]:
        assert one["category_id"] == {"cat": 3, "dog": 7, "owl": 11}[one["class"]]
        x0, y0, x1, y1 = one["box"]
        assert 0 <= x0 <= x1 <= 90
        assert 0 <= y0 <= y1 <= 60
        if weights.stem == "mask_rcnn":
            assert decode(one["mask"], 60, 90).shape == (60, 90)
    scores = [one["score"] for one in first["objects"]]
    assert scores == sorted(scores, reverse=True)
    with Image.open(tmp_path / "out" / "one.png") as result:
        assert min(result.size) >= 480
        enlarged = picture(1, (90, 60)).resize(result.size, Image.Resampling.BICUBIC)
        assert not np.array_equal(np.asarray(result), np.asarray(enlarged))


def test_an_image_is_never_overwritten(weights: Path, tmp_path: Path) -> None:
    picture(1).save(tmp_path / "one.png")
    before = (tmp_path / "one.png").read_bytes()
    assert run("--weights", weights, tmp_path / "one.png", "--output", tmp_path) == 0
    assert (tmp_path / "one.png").read_bytes() == before
    assert (tmp_path / "one-2.png").is_file()


def test_an_image_that_the_detector_can_not_take_is_named_and_the_others_drawn(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(1, (300, 3)).save(tmp_path / "flat.png")
    picture(1).save(tmp_path / "good.png")
    names = (tmp_path / "flat.png", tmp_path / "good.png")
    assert run("--weights", weights, "--output", tmp_path / "out", *names) == 1
    assert "the detector can't take its 300 x 3" in capsys.readouterr().err
    said = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert [Path(entry["image"]).name for entry in said["images"]] == ["good.png"]


def test_a_threshold_of_1_draws_nothing(weights: Path, tmp_path: Path) -> None:
    picture(1).save(tmp_path / "one.png")
    assert run("--weights", weights, tmp_path / "one.png", "--threshold", 1, "--output", tmp_path / "out") == 0
    said = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert said["images"][0]["objects"] == []


def test_unreadable_images_are_named_and_the_others_drawn(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(1).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"nothing")
    arguments = ("--weights", weights, "--output", tmp_path / "out")
    assert run(*arguments, tmp_path / "good.png", tmp_path / "bad.png", tmp_path / "none.png") == 1
    said = capsys.readouterr().err
    assert "bad.png: not an image" in said
    assert "none.png: no such file" in said
    assert [
        Path(entry["image"]).name
        for entry in json.loads((tmp_path / "out" / "detections.json").read_text())["failures"]
    ] == [
        "bad.png",
        "none.png",
    ]
    assert run(*arguments, tmp_path / "bad.png") == 2


SICK: dict[str, tuple[str, Any]] = {
    "NaN in the backbone": ("blocks.0.norm1.weight", torch.nan),
    "Inf in the pyramid": ("inner_blocks.0.0.weight", torch.inf),
    "zero std": ("std", [0.2, 0.0, 0.2]),
}


@pytest.mark.parametrize("detector", ["mask_rcnn", "retinanet"])
def test_a_detector_with_a_mean_that_is_not_finite_is_not_written(tmp_path: Path, detector: str) -> None:
    model = helpers.small(detector, mean=[float("nan"), 0.5, 0.5])
    with pytest.raises(InputError, match=r"mean\.0 = nan"):
        save_detector(tmp_path / "sick.safetensors", model, classes=NAMES, category_ids=[3, 7, 11])
    assert not (tmp_path / "sick.safetensors").exists()


@pytest.mark.parametrize("kind", SICK)
@pytest.mark.parametrize("detector", ["mask_rcnn", "retinanet"])
def test_a_detector_whose_outputs_are_not_finite_is_an_error_that_names_the_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], detector: str, kind: str
) -> None:
    """torchvision drops boxes that are not finite: it found nothing, and that was all."""
    name, value = SICK[kind]
    statistics = name in ("mean", "std")
    model = helpers.small(detector, **({name: value} if statistics else {}))
    said = "the first layer whose output is not finite is transform"
    if not statistics:
        given, parameter = next(pair for pair in model.named_parameters() if pair[0].endswith(name))
        said = f"the weights {given} are already not finite"
        with torch.no_grad():
            parameter.view(-1)[0] = value
    weights = tmp_path / "sick.safetensors"
    save_detector(weights, model, classes=NAMES, category_ids=[3, 7, 11])
    picture(1, (90, 60)).save(tmp_path / "one.png")
    assert run("--weights", weights, tmp_path / "one.png", "--output", tmp_path / "out") == 2
    printed = capsys.readouterr().err
    assert f"sick.safetensors: the detector gives outputs that are not finite: {said}" in printed
    assert printed.count("\n") == 1


def test_weights_of_a_classifier_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_small(tmp_path / "classifier.safetensors")
    picture(1).save(tmp_path / "one.png")
    assert run("--weights", tmp_path / "classifier.safetensors", tmp_path / "one.png") == 2
    assert "holds a classifier: expected a detector" in capsys.readouterr().err
    assert run("--weights", tmp_path / "none.safetensors", tmp_path / "one.png") == 2
    with pytest.raises(SystemExit):
        main(["detect", "--weights", "x", "--threshold", "2", "y"])


def test_bfloat16_finds_nearly_the_same_scores(weights: Path, tmp_path: Path) -> None:
    picture(1, (90, 60)).save(tmp_path / "one.png")
    scores = []
    for precision in ("float32", "bfloat16"):
        arguments = ("--weights", weights, tmp_path / "one.png", "--threshold", 0, "--output", tmp_path / precision)
        assert run(*arguments, "--precision", precision) == 0
        said = json.loads((tmp_path / precision / "detections.json").read_text())
        scores.append([one["score"] for one in said["images"][0]["objects"]])
    assert scores[0] != scores[1]
    assert max(scores[0]) == pytest.approx(max(scores[1]), abs=0.05)
