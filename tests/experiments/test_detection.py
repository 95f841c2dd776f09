import json

import pytest
from PIL import Image

from laplacianformer import cli
from laplacianformer.experiments import detection
from laplacianformer.experiments.rows import read_rows

pytest.importorskip("matplotlib")


def test_recorded_runs_are_read(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipes, written = tmp_path / "results" / "recipes", tmp_path / "results" / "experiments" / "detection"
    for name in ("shapes-maskrcnn", "pennfudan-retinanet", "without-scores"):
        (recipes / name).mkdir(parents=True)
    scores = {"box": {"AP": 51.2, "AP50": 70.0}, "mask": {"AP": 48.1, "AP50": None}}
    (recipes / "shapes-maskrcnn" / "scores.json").write_text(json.dumps(scores))
    run = {"metrics": {"box_ap": 60.5, "steps": 10}}
    (recipes / "pennfudan-retinanet" / "run.json").write_text(json.dumps(run))
    cli.main(["reproduce", "detection"])
    verdict = json.loads((written / "verdict.json").read_text())
    assert verdict["verdict"] == "not confirmed at this scale"
    assert "pennfudan-retinanet: box AP 60.5; shapes-maskrcnn: box AP 51.2, mask AP 48.1." in verdict["measured"]
    assert len(read_rows(written / "precision.csv")) == len(detection.REPORTED) + 2
    with Image.open(written / "detection.png") as picture:
        assert min(picture.size) > 400


@pytest.mark.slow
def test_the_quick_form_trains(tmp_path, monkeypatch) -> None:
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    cli.main(["reproduce", "detection", "--quick"])
    measured = read_rows(tmp_path / "runs" / "quick" / "detection" / "precision.csv")[-1]
    assert measured["recipe"] == "shapes-maskrcnn"
    assert 0 <= float(measured["box_ap"]) < 100


def test_runs_on_coco_are_compared_with_the_paper() -> None:
    assert detection.reported("coco-maskrcnn-tiny") == 43.2
    assert detection.reported("coco-retinanet-large") == 48.5
    assert detection.reported("coco-maskrcnn-huge") is None
    found = {"coco-maskrcnn-tiny": {"box_ap": 43.0}, "coco-retinanet-tiny": {"box_ap": 30.0}}
    assert detection.judge(found).verdict == "agrees in part"
    assert "coco-retinanet-tiny: box AP 30.0 (the paper: 42.5)" in detection.judge(found).measured
