"""`laplacianformer predict`: the classes of each image, for people and for programs."""

import json
import os

import pytest
import torch
from PIL import Image

from laplacianformer import weights
from laplacianformer.classification import _inference as inference
from laplacianformer.cli import main
from laplacianformer.commands import predict
from laplacianformer.data import _images as images
from tests.helpers import CLASSES, INPUT, picture, save_small


@pytest.fixture
def file(tmp_path):
    save_small(tmp_path / "model.safetensors", metrics='{"accuracy": 0.5}')
    return str(tmp_path / "model.safetensors")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(5):
        picture(number).save(folder / f"{number}.png")
    return folder


def code_of(arguments):
    try:
        main(arguments)
    except SystemExit as stop:
        return stop.code
    return 0


def as_json(arguments, capsys):
    code = code_of(["predict", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_predictions_are_those_of_the_model(file, folder, capsys):
    code, found = as_json(["--weights", file, str(folder), "--top", "7"], capsys)
    loaded = weights.load_weights(file)
    transform = images.to_input(INPUT)
    expected = loaded.model(torch.stack([transform(picture(number)) for number in range(5)])).softmax(1)
    assert code == 0
    assert [os.path.basename(entry["image"]) for entry in found["predictions"]] == [f"{n}.png" for n in range(5)]
    for entry, row in zip(found["predictions"], expected.tolist(), strict=True):
        ranking = [(item["class"], item["probability"]) for item in entry["classes"]]
        assert [value for _, value in ranking] == sorted((value for _, value in ranking), reverse=True)
        assert dict(ranking) == pytest.approx(dict(zip(CLASSES, row, strict=True)), abs=1e-6)
    assert len({entry["classes"][0]["class"] for entry in found["predictions"]}) > 1
    assert found["weights"]["metrics"] == {"accuracy": 0.5}
    assert found["failures"] == []


@pytest.mark.parametrize(("top", "count"), [(1, 1), (3, 3), (99, 7)])
def test_top_is_the_number_of_classes(file, folder, capsys, top, count):
    _, found = as_json(["--weights", file, str(folder / "0.png"), "--top", str(top)], capsys)
    assert len(found["predictions"][0]["classes"]) == count


def test_more_images_than_a_batch_keep_their_order(file, folder, capsys, monkeypatch):
    one_by_one = as_json(["--weights", file, str(folder)], capsys)[1]["predictions"]
    monkeypatch.setattr(inference, "BATCH_SIZE", 2)
    for entry, other in zip(
        as_json(["--weights", file, str(folder)], capsys)[1]["predictions"], one_by_one, strict=True
    ):
        assert entry["image"] == other["image"]
        values = [[item["probability"] for item in both["classes"]] for both in (entry, other)]
        assert values[0] == pytest.approx(values[1], abs=1e-6)


def test_a_broken_file_among_good_ones_is_named_and_the_others_are_printed(file, folder, capsys):
    (folder / "2b.png").write_bytes(b"broken")
    names = [str(folder), str(folder / "gone.png")]
    code, found = as_json(["--weights", file, *names], capsys)
    assert code == 1
    assert len(found["predictions"]) == 5
    assert [os.path.basename(entry["image"]) for entry in found["failures"]] == ["2b.png", "gone.png"]
    assert "not an image" in found["failures"][0]["reason"]

    assert code_of(["predict", "--weights", file, *names]) == 1
    captured = capsys.readouterr()
    assert "2b.png: not an image" in captured.err.replace("\n", "")
    assert "gone.png: no such file" in captured.err.replace("\n", "")
    assert captured.out.count(" %") >= 15
    assert "Traceback" not in captured.err


def test_a_name_that_is_too_long_does_not_stop_the_others(file, folder, capsys):
    names = ["n" * 300, str(folder), f"{folder}/{'n' * 300}*"]
    assert code_of(["predict", *names, "--weights", file, "--json"]) == 1
    out, err = capsys.readouterr()
    printed = json.loads(out)
    assert len(printed["predictions"]) == 5
    assert [failure["image"] for failure in printed["failures"]] == [names[0], names[2]]
    assert err.count("File name too long") == 2


def test_nothing_but_broken_files_ends_with_code_2(file, tmp_path, capsys):
    code, found = as_json(["--weights", file, str(tmp_path / "gone.png"), str(tmp_path / "*.jpg")], capsys)
    assert code == 2
    assert (len(found["predictions"]), len(found["failures"])) == (0, 2)


def test_the_table_says_what_the_weights_are(file, folder, capsys):
    main(["predict", "--weights", file, str(folder / "1.png")])
    out = capsys.readouterr().out
    for part in ("1.png", "laplacianformer_nano", "accuracy 50.0 %", "It knows 7 classes"):
        assert part in out


def test_names_with_markup_and_odd_bytes_are_printed_as_they_are(file, tmp_path, capsys, monkeypatch):
    picture(0).save(tmp_path / "[red]x.png")
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")
    with open(odd, "wb") as stream:
        picture(0).save(stream, "PNG")
    monkeypatch.chdir(tmp_path)
    main(["predict", "--weights", file, "[red]x.png", os.path.basename(odd)])
    out = capsys.readouterr().out
    assert "[red]x.png" in out
    assert "\\xff.png" in out
    assert code_of(["predict", "--weights", file, "[red]gone.png"]) == 2
    assert "[red]gone.png" in capsys.readouterr().err


def test_attention_is_drawn_and_json_stays_alone_on_the_standard_output(file, folder, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "MOST_DRAWN", 2)
    output = tmp_path / "new" / "attention.png"
    code, found = as_json(["--weights", file, str(folder), "--attention", str(output), "--query", "0.2,0.9"], capsys)
    assert (code, len(found["predictions"])) == (0, 5)
    with Image.open(output) as drawn:
        assert drawn.format == "PNG"
        assert min(drawn.size) > 400
    main(["predict", "--weights", file, str(folder), "--attention", str(output)])
    assert "the first 2 of 5 images" in capsys.readouterr().err.replace("\n", "")


def test_attention_without_an_image_is_an_error_and_draws_nothing(file, tmp_path, capsys):
    output = tmp_path / "attention.png"
    assert code_of(["predict", "--weights", file, str(tmp_path / "gone.png"), "--attention", str(output)]) == 2
    assert "was not drawn" in capsys.readouterr().err.replace("\n", " ")
    assert not output.exists()


@pytest.mark.parametrize(("path", "reason"), [("images", "it is a folder"), ("images/0.png/x", "Not a directory")])
def test_a_path_for_attention_that_can_not_be_written_is_reported_at_once(file, folder, tmp_path, capsys, path, reason):
    assert code_of(["predict", "--weights", file, str(folder), "--attention", str(tmp_path / path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"laplacianformer predict: can't write {tmp_path}/images")
    assert captured.err.endswith(f"{reason}\n")
    assert captured.out == ""


def test_images_may_follow_options(file, folder, capsys):
    first, second, third = (str(folder / f"{number}.png") for number in range(3))
    _, found = as_json([first, "--weights", file, second, "--top", "1", third], capsys)
    assert [entry["image"] for entry in found["predictions"]] == [first, second, third]


@pytest.mark.parametrize(
    "extra",
    [
        ["--query", "2,0"],
        ["--query", "a"],
        ["--query", "nan,0"],
        ["--top", "0"],
        ["--device", "warp9"],
        ["--weights", "none"],
    ],
    ids=str,
)
def test_wrong_options_end_with_code_2(file, folder, capsys, extra):
    assert code_of(["predict", "--weights", file, str(folder), *extra]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "laplacianformer predict: " in captured.err
    assert "Traceback" not in captured.err


def test_a_model_that_gives_nan_is_reported(tmp_path, folder, capsys):
    path = tmp_path / "nan.safetensors"
    model = save_small(path)
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    weights.save_weights(path, model, classes=CLASSES, metadata={})
    assert code_of(["predict", "--weights", str(path), str(folder)]) == 2
    assert "nan.safetensors gives outputs that are not finite: the weights head.bias are" in capsys.readouterr().err


def test_bfloat16_rounds_and_predicts_nearly_the_same(file, folder, capsys):
    """Also that the block of the precision is left: what follows is float32 again."""
    exact, rounded, again = (
        as_json(["--weights", file, str(folder), "--top", "7", "--precision", precision], capsys)[1]["predictions"]
        for precision in ("float32", "bfloat16", "float32")
    )
    assert again == exact
    assert rounded != exact
    for one, other in zip(rounded, exact, strict=True):
        values = [{item["class"]: item["probability"] for item in each["classes"]} for each in (one, other)]
        assert values[0] == pytest.approx(values[1], abs=0.02)
