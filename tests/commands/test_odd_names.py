"""File names, classes and metadata with terminal escapes, line breaks, markup and bytes that are not UTF-8."""

import json
import logging
import os
import re
from pathlib import Path

import pytest

from laplacianformer.cli import main
from laplacianformer.detection import save_detector
from laplacianformer.weights import load_weights, save_weights
from tests.detection import helpers
from tests.helpers import INPUT, picture, small_model
from tests.training.helpers import image_folder, write_recipe

ODD = b"\xff\x1b]0;owned\x07\n[/red]\xe2\x80\xae"
SHOWN = r"\xff\x1b]0;owned\x07\n[/red]\u202e"
NAMES = [os.fsdecode(ODD), "plain", "\x9b31m[bold]", "$x$\r", "absent", "tab\t", "a\nb"]


@pytest.fixture
def odd(tmp_path):
    """A folder whose name is as odd as can be, where the file system takes it."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + ODD.replace(b"/", b"")))
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"the file system takes no such name: {error}")
    return path


@pytest.fixture
def weights(odd):
    stated = {"input": json.dumps(INPUT), "data": "\x1b[2Jdata\n", "description": "\x1b]0;owned\x07",
              "commit": "\x1b[8m", "metrics": '{"accuracy": Infinity, "\\u001b[1m": NaN}'}  # fmt: skip
    path = odd / "model.safetensors"
    save_weights(path, small_model(), classes=NAMES, metadata=stated)
    return path


def run(capfd, *arguments):
    """Exit code, standard output and stderr, which must not hold control characters or halves of characters."""
    try:
        main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    out, err = capfd.readouterr()
    for text in (out, err):
        assert not re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text)
    return code, out, err


def strict(text):
    """The value of JSON that has no constants and nothing that is not Unicode."""

    def no_constant(name):
        raise ValueError(f"{name} is not JSON")

    value = json.loads(text, parse_constant=no_constant)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def odd_file(folder):
    path = folder / (os.fsdecode(ODD.replace(b"/", b"")) + ".png")
    with path.open("wb") as file:
        picture(0).save(file, "PNG")
    return path


def test_predict(odd, weights, capfd):
    path = odd_file(odd)
    (odd / "broken\x1b[31m.png").write_text("no image")
    images = path, odd / "broken\x1b[31m.png", odd / "gone\x07.png"
    code, out, err = run(capfd, "predict", "--weights", weights, *images, "--attention", odd / "out\x1b.png")
    assert code == 1
    assert SHOWN.replace("/", "") + ".png" in out
    assert r"broken\x1b[31m.png: not an image" in err
    assert r"gone\x07.png: no " in err
    assert (odd / "out\x1b.png").is_file()
    code, out, err = run(capfd, "predict", "--weights", weights, *images, "--json")
    said = strict(out)
    assert code == 1
    assert said["weights"]["metrics"] == {}, "numbers that are not finite are left out"
    assert len(said["predictions"]) == 1
    assert said["weights"]["classes"][1] == "plain"


def test_diagnose(odd, weights, capfd):
    path = odd_file(odd)
    (odd / "broken\x1b[31m.png").write_text("no image")
    given = "diagnose", "--weights", weights, path, odd / "broken\x1b[31m.png"
    code, _, err = run(capfd, *given)
    assert code == 1
    assert r"broken\x1b[31m.png: not an image" in err
    code, out, _ = run(capfd, *given, "--json")
    assert strict(out)["images"] == 1
    code, _, err = run(capfd, *given, "--teacher", odd / "\x1b.safetensors")
    assert code == 2
    assert SHOWN.replace("/", "") + "/model.safetensors is not converted" in err


def test_eval_and_export(odd, weights, capfd):
    for number, name in enumerate(NAMES):
        if name != "absent":
            (odd / "data" / name.replace("/", "_")).mkdir(parents=True)
            picture(number).save(odd / "data" / name.replace("/", "_") / "1.png")
    code, _, err = run(capfd, "eval", "--weights", weights, "--data", odd / "data", "--output", odd / "eval")
    assert code == 2
    assert "has no images of" in err
    renamed = [name.replace("/", "_") for name in NAMES if name != "absent"] + ["last"]
    (odd / "data" / "last").mkdir()
    odd_file(odd / "data" / "last")
    (odd / "data" / "last" / "\x1b[1m.png").write_text("no image")
    save_weights(weights, small_model(), classes=renamed, metadata={"input": json.dumps(INPUT)})
    code, out, err = run(capfd, "eval", "--weights", weights, "--data", odd / "data", "--output", odd / "eval")
    assert code == 1
    assert r"last/\x1b[1m.png: not an image" in err
    assert r"Saved: " in out
    assert strict((odd / "eval" / "eval.json").read_text())["images"] == 7
    assert run(capfd, "export", "--weights", weights, "--format", "hf", odd / "card")[0] == 0
    (odd / "card" / "README.md").read_text(encoding="utf-8")


def test_detect(odd, capfd):
    names = [os.fsdecode(ODD), "\x1b[31m", "a\nb"]
    save_detector(odd / "d.safetensors", helpers.small("retinanet", score_thresh=0.0), classes=names)
    picture = odd_file(odd)
    code, out, _ = run(
        capfd, "detect", "--weights", odd / "d.safetensors", picture, odd / "gone\x1b", "--output", odd / "found"
    )
    assert code == 1
    assert r"\x1b]0;owned" in re.sub(r"[│\s]", "", out)
    strict((odd / "found" / "detections.json").read_text())


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")  # of few workers
def test_train(odd, capfd):
    images = image_folder(odd / "images", classes=2, train=4, val=2)
    for split in ("train", "val"):
        (images / split / "class1").rename(images / split / os.fsdecode(b"\xfe\x1b[7m"))
    (images / "train" / "class0" / "\x1b[5m.png").write_text("no image")
    write_recipe(odd / "tiny\x1b.yaml", images, data={"root": None, "corrupt_limit": 1.0}, optimise={"epochs": 2})
    recipe = odd / "tiny\x1b.yaml"
    code, out, _ = run(capfd, "train", "--recipe", recipe, "--data", images, "--output", odd / "run[/x]")
    assert code == 0
    assert "run[/x]" in re.sub(r"[│\s]", "", out)
    assert load_weights(odd / "run[/x]" / "model.safetensors").classes == ("class0", os.fsdecode(b"\xfe\x1b[7m"))
    code, _, err = run(capfd, "train", "--recipe", "\x1b[31m", "--output", odd / "other")
    assert code == 2
    assert r"\x1b[31m" in err


def test_the_log_is_escaped(capfd):
    """Where nobody has set up another one: pytest has, so that its handlers are taken away for a moment."""
    main(["reproduce", "--list"])
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        logging.getLogger("laplacianformer.data").warning("unreadable: %s", "\x1b[31m.png")
    finally:
        root.handlers = handlers
    assert capfd.readouterr().err.endswith("unreadable: \\x1b[31m.png\n")


def test_options_are_escaped(capfd):
    for arguments in (["--\x1b[31m"], ["predict", "x.png", "--\x1b"], ["predict", "--top", "\x1b", "x.png"], ["\x1b"]):
        assert run(capfd, *arguments)[0] == 2
