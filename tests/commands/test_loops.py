"""Symbolic links that lead to themselves, wherever a command meets one: it goes on, or names the link in one line."""

import pytest

from laplacianformer.cli import main
from laplacianformer.detection import save_detector
from laplacianformer.segmentation import save_segmenter
from tests.detection import helpers
from tests.helpers import CLASSES, picture, save_small
from tests.segmentation import helpers as segmenting
from tests.training.helpers import image_folder, write_recipe


def loop(path):
    path.symlink_to(path)
    return path


def run(capfd, *arguments):
    """Exit code, and what was said."""
    try:
        main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    return code, "".join(capfd.readouterr())


def test_train(tmp_path, capfd, caplog):
    found = loop(image_folder(tmp_path / "data", train=6) / "train" / "loop")
    recipe = write_recipe(tmp_path / "r.yaml", tmp_path / "data", optimise={"epochs": 1, "warmup_epochs": 0})
    assert run(capfd, "train", "--recipe", recipe, "--output", tmp_path / "run")[0] == 0
    assert f"lead to themselves: {found}" in caplog.text


def test_eval(tmp_path, capfd, caplog):
    save_small(tmp_path / "model.safetensors")
    for name in CLASSES:
        (tmp_path / "data" / name).mkdir(parents=True)
        picture(0).save(tmp_path / "data" / name / "0.png")
    found = loop(tmp_path / "data" / "loop")
    given = "eval", "--weights", tmp_path / "model.safetensors", "--data", tmp_path / "data"
    assert run(capfd, *given, "--output", tmp_path / "out")[0] == 0
    assert f"lead to themselves: {found}" in caplog.text


def save_detecting(path):
    save_detector(path, helpers.small("retinanet"), classes=["a", "b", "c"])


def save_segmenting(path):
    save_segmenter(path, segmenting.small(), labels=segmenting.CLASSES)


@pytest.mark.parametrize(("command", "save"), [("detect", save_detecting), ("segment", save_segmenting)])
def test_detect_and_segment(tmp_path, capfd, command, save):
    save(tmp_path / "model.safetensors")
    (tmp_path / "images").mkdir()
    picture(0).save(tmp_path / "images" / "0.png")
    found = loop(tmp_path / "images" / "loop.png")
    given = command, "--weights", tmp_path / "model.safetensors"
    code, said = run(capfd, *given, tmp_path / "images", "--output", tmp_path / "out")
    assert code == 1
    assert f"{found}: " in said
    assert list((tmp_path / "out").glob("0*.png"))
    code, said = run(capfd, *given, tmp_path / "images" / "0.png", found, "--output", found)
    assert code == 2
    assert f"can't write {found}" in said.splitlines()[-1]
