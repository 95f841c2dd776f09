"""File names, classes and metadata with terminal escapes, line breaks, markup and bytes that are not UTF-8."""

import json
import logging
import os
import re
from pathlib import Path

import pytest
from safetensors.torch import save_file

from laplacianformer import sequences
from laplacianformer.cli import main
from laplacianformer.detection import save_detector
from laplacianformer.segmentation import labels_of, save_segmenter
from laplacianformer.weights import load_weights, save_weights
from tests.convert import helpers as converted
from tests.detection import helpers
from tests.helpers import INPUT, picture, small_model
from tests.segmentation import helpers as segmenters
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


# ---- spaces, letters of other alphabets, a leading dash, percent signs ----

PLAIN = ["with space", "Größe 日本語 😀", "-dash", "--json", "100%s %d%%", "[bold] {0} $HOME ~ *"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder: only names without a folder can begin with a dash."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pictures(names=PLAIN):
    """One picture per name, as a command takes them after `--`."""
    for number, name in enumerate(names):
        picture(number).save(Path(f"{name}.png"))
    return [f"{name}.png" for name in names]


@pytest.mark.parametrize("name", PLAIN)
def test_segment_with_such_names(here, name, capfd):
    weights, output = f"{name}.safetensors", f"{name} found"
    tree = {"classes": [{"name": one, "value": value} for value, one in enumerate(segmenters.CLASSES)]}
    save_segmenter(weights, segmenters.small(), labels=labels_of(tree, "it"))
    code, _, err = run(capfd, "segment", f"--weights={weights}", f"--output={output}", "--", *pictures())
    assert (code, err) == (0, "")
    said = strict((here / output / "segmentation.json").read_text(encoding="utf-8"))
    assert [entry["image"] for entry in said["images"]] == [f"{one}.png" for one in PLAIN]
    assert all(Path(entry[key]).is_file() for entry in said["images"] for key in ("drawn", "labels"))


@pytest.mark.parametrize("name", PLAIN)
def test_sequences_with_such_names(here, name, capfd):
    weights = f"{name}.safetensors"
    encoder = sequences.SequenceEncoder(257, 96, 2, landmarks=4, dim=16).eval()
    sequences.save_encoder(weights, encoder, sequence="text", classes=(name, "other"))
    files = [f"{one}.txt" for one in PLAIN]
    for file in files:
        Path(file).write_text("a film", encoding="utf-8")
    for options in ([], ["--json"]):
        code, out, err = run(capfd, "predict", f"--weights={weights}", *options, "--", *files)
        assert (code, err) == (0, "")
    assert [entry["sequence"] for entry in strict(out)["predictions"]] == files


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")  # of few workers
@pytest.mark.parametrize("name", [PLAIN[1], "-dash 100%s %d%%"])
def test_convert_with_such_names(here, name, capfd):
    save_file(converted.teacher().state_dict(), f"{name}.safetensors")
    names = [*PLAIN[:4], "last"]
    Path(f"{name}.json").write_text(json.dumps(names), encoding="utf-8")
    for number in range(20):
        folder = here / f"{name} data" / ("val" if number < 5 else "train") / names[number % 5]
        folder.mkdir(parents=True, exist_ok=True)
        picture(number, (converted.SIDE,) * 2).save(folder / f"{PLAIN[number % 6]}{number}.png")
    code, *_ = run(
        *(capfd, "convert", "vit_tiny_patch16_224", f"--weights={name}.safetensors", f"--classes={name}.json"),
        *(f"--data={name} data", f"--output={name} out.safetensors", f"data.size={converted.SIDE}"),
        *(f"teacher.args={json.dumps(converted.arguments())}", *converted.QUICK, "match.epochs=1", "distil.epochs=1"),
    )
    assert code == 0
    assert load_weights(f"{name} out.safetensors").classes == tuple(names)


@pytest.mark.parametrize("name", PLAIN)
def test_demo_with_such_names(here, name, capfd, monkeypatch):
    """Up to where the page is served; tests/demo uploads files with such names."""
    server = pytest.importorskip("laplacianformer.demo.server", reason="the page needs gradio", exc_type=ImportError)
    save_weights(f"{name}.safetensors", small_model(), classes=NAMES, metadata={"input": json.dumps(INPUT)})

    def serve(explorer, port):
        raise KeyboardInterrupt  # as Ctrl+C would, while it is served

    monkeypatch.setattr(server, "serve", serve)
    assert run(capfd, "demo", f"--weights={name}.safetensors")[0] == 0
