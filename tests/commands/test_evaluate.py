"""`laplacianformer eval` of classifiers: what is printed and written, and errors. Detectors: detection/test_task.py."""

import json
import shutil

import pytest
import torch
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.classification._evaluation import evaluate, open_batches
from laplacianformer.cli import main
from laplacianformer.inspect import without_attention
from laplacianformer.weights import load_weights, save_weights
from tests.classification.helpers import labelled_folder
from tests.helpers import CLASSES, INPUT, picture, save_small, small_model


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_small(path)
    return load_weights(path)


@pytest.fixture
def data(tmp_path):
    return labelled_folder(tmp_path / "data")


def command(loaded, data, tmp_path, *extra):
    output = tmp_path / "out"
    arguments = ["eval", "--weights", str(loaded.path), "--data", str(data), "--output", str(output), "--workers", "0"]
    try:
        main([*arguments, *extra])
    except SystemExit as stop:
        return stop.code, output
    return 0, output


def test_the_command_prints_tables_and_writes_two_files(loaded, data, tmp_path, capsys):
    code, output = command(loaded, data, tmp_path)
    assert code == 0
    assert sorted(path.name for path in output.iterdir()) == ["confusion.png", "eval.json"]
    written = json.loads((output / "eval.json").read_text())
    out = capsys.readouterr().out
    assert f"{100 * written['top1']:.2f} %" in out
    assert f"{100 * written['top5']:.2f} %" in out
    assert "images/s" in out
    assert all(name in out for name in CLASSES)
    assert written["device"] in out
    with Image.open(output / "confusion.png") as drawn:
        assert drawn.format == "PNG"


def test_without_attention_a_second_accuracy_stands_beside_the_first(data, tmp_path, capsys):
    model = small_model()
    with torch.no_grad():
        model.stages[1].blocks[0].attention.proj.weight.mul_(30)  # the layer matters
    save_weights(tmp_path / "model.safetensors", model, classes=CLASSES, metadata={"input": json.dumps(INPUT)})
    loaded = load_weights(tmp_path / "model.safetensors")
    plain = evaluate(loaded, open_batches(loaded, str(data)))
    with without_attention(loaded.model, "off", ["stages.1"]):
        off = evaluate(loaded, open_batches(loaded, str(data)))
    assert off.top1 != plain.top1
    code, output = command(loaded, data, tmp_path, "--without-attention", "off", "--layers", "stages.1")
    assert code == 0
    written = json.loads((output / "eval.json").read_text())
    assert written["top1"] == plain.top1
    found = written["without_attention"]
    assert (found["branch"], found["top1"]) == ("off", off.top1)
    assert len(found["layers"]) == len(loaded.model.stages[1].blocks)
    assert "top-1, attention off in" in capsys.readouterr().out


def test_indices_are_not_taken_for_names(loaded, tmp_path, capsys):
    """Weights that know zebras can't be evaluated on digits."""
    assert command(loaded, "digits", tmp_path)[0] == 2
    assert "has classes that the weights don't know: 0, 1, 2" in capsys.readouterr().err


def test_broken_images_are_named_and_not_counted(loaded, data, tmp_path, capsys):
    (data / "cat" / "0broken.png").write_bytes(b"no image")
    (data / "owl" / "1broken.jpg").write_bytes(b"")
    code, output = command(loaded, data, tmp_path)
    written = json.loads((output / "eval.json").read_text())
    assert code == 1
    assert written["images"] == 21
    assert len(written["unreadable"]) == 2
    errors = capsys.readouterr().err.replace("\n", "")
    assert f"{data}/cat/0broken.png: not an image" in errors
    assert "1broken.jpg" in errors


def unknown(data):
    (data / "cat").rename(data / "gnu")


def empty(data):
    shutil.rmtree(data / "cat")
    (data / "cat").mkdir()


def flat(data):
    shutil.rmtree(data)
    data.mkdir()
    picture(0).save(data / "0.png")


def without_images(data):
    shutil.rmtree(data)
    data.mkdir()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            unknown,
            "has classes that the weights don't know: gnu;.*has no images of: cat. Expected: zebra, ant",
        ),
        (empty, "data/cat has no images"),
        (lambda data: shutil.rmtree(data / "cat"), "has no images of: cat. Expected: zebra"),
        (flat, r"0\.png lies outside the class folders: expected .*data/CLASS/image"),
        (without_images, "found no images in"),
        (shutil.rmtree, "there is no .*: give --data a folder"),
    ],
)
def test_data_that_does_not_fit_ends_with_one_line_and_writes_nothing(loaded, data, tmp_path, capsys, damage, message):
    damage(data)
    code, output = command(loaded, data, tmp_path)
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert error.startswith("laplacianformer eval: ")
    with pytest.raises(InputError, match=message):
        open_batches(loaded, str(data))
    assert not output.exists()


@pytest.mark.parametrize(
    "extra",
    [
        ["--batch-size", "0"],
        ["--workers", "-1"],
        ["--device", "warp9"],
        ["--data", "torch/nothing:."],
        ["--data", "wds/some:."],
        ["--weights", "x"],
        ["--without-attention", "some"],
        ["--layers", "stages.1"],
        ["--without-attention", "mean", "--layers", "stages.9"],
    ],
    ids=str,
)
def test_wrong_options_end_with_code_2_and_write_nothing(loaded, data, tmp_path, capsys, extra):
    code, output = command(loaded, data, tmp_path, *extra)
    assert code == 2
    assert "laplacianformer eval: " in capsys.readouterr().err
    assert not output.exists()


def test_an_output_that_is_a_file_is_reported(loaded, data, tmp_path, capsys):
    (tmp_path / "out").touch()
    assert command(loaded, data, tmp_path)[0] == 2
    assert capsys.readouterr().err == f"laplacianformer eval: can't write {tmp_path / 'out'}: Not a directory\n"


def test_windows_are_for_segmenters(loaded, data, tmp_path, capsys):
    code, output = command(loaded, data, tmp_path, "--window", "32")
    assert code == 2
    assert "--window is for segmenters" in capsys.readouterr().err
    assert not output.exists()


def test_eval_json_says_the_precision(loaded, data, tmp_path, monkeypatch):
    computed = []
    original = torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: computed.append(original(self, x)) or computed[-1])
    for precision in ("float32", "bfloat16"):
        code, output = command(loaded, data, tmp_path, "--precision", precision)
        assert code == 0
        assert json.loads((output / "eval.json").read_text())["precision"] == precision
        assert {out.dtype for out in computed} == {getattr(torch, precision)}
        computed.clear()
