"""`laplacianformer convert`: from a file or a name of timm to a weights file, and what is refused in one line."""

import json
from pathlib import Path

import pytest
import torch

from laplacianformer import load_weights, recipes
from laplacianformer.cli import main
from laplacianformer.commands.convert import layer_numbers
from tests.convert.helpers import QUICK, SIDE, arguments, save_teacher, teacher
from tests.training.helpers import image_folder

CLASSES = ("class2", "class0", "class1", "other", "more")  # not in the order of the folders
OVERWRITES = "teacher.safetensors would overwrite the model that is converted: give --output another name"
ONE_EPOCH = (*QUICK, "match.epochs=1", "distil.epochs=1", f"data.size={SIDE}")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images and teachers: tensors alone, and a file of this package."""
    monkeypatch.chdir(tmp_path)
    image_folder(Path("data"), size=SIDE, train=4, val=2)
    save_teacher(Path("teacher.safetensors"), teacher())
    torch.save({"state_dict": teacher().state_dict()}, "teacher.pth")
    Path("classes.json").write_text(json.dumps({name: number for number, name in enumerate(CLASSES)}))
    return tmp_path


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    """The one line that the command ends with, where --data and --output are what a test does not say."""
    usual = {"--data": "data", "--output": "out.safetensors"}
    more = [word for option, value in usual.items() if option not in given for word in (option, value)]
    with pytest.raises(SystemExit) as stop:
        main(["convert", *given, *more])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("laplacianformer convert: ")
    return line.removeprefix("laplacianformer convert: ")


def test_a_model_of_timm_is_converted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With weights and classes of one's own, and only some layers."""
    main(
        [
            *("convert", "vit_tiny_patch16_224", "--weights", "teacher.pth", "--classes", "classes.json"),
            *("--layers", "1", "--data", "data", "--output", "out.safetensors", *ONE_EPOCH),
            f"teacher.args={json.dumps(arguments())}",
        ]
    )
    printed = capsys.readouterr().out
    for part in ("match, epoch 1 of 1: loss ", "distil, epoch 1 of 1: loss ", "Converted layers", "out.safetensors"):
        assert part in printed
    loaded = load_weights(Path("out.safetensors"))
    assert json.loads(loaded.metadata["converted"])["layers"] == ["blocks.1.attn"]
    assert loaded.classes == CLASSES
    assert loaded.input["mean"] == [0.5] * 3, "as timm says about this model"
    assert Path("out.safetensors").read_bytes() == Path("out/distil/model.safetensors").read_bytes()
    with pytest.raises(SystemExit):
        main(["export", "--weights", "out.safetensors", "--format", "hf", "folder"])
    assert "converted model" in capsys.readouterr().err


def test_there_may_be_nothing_to_resume_and_a_finished_run_is_not_overwritten(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["teacher.safetensors", "--data", "data", "--output", "out.safetensors", *ONE_EPOCH]
    main(["convert", *given, "--resume"])
    assert "distil, epoch 1 of 1: loss " in capsys.readouterr().out
    before = files(here)
    assert refused(capsys, *given) == "out already holds a run: pass --resume to continue it, or another --output"
    assert files(here) == before

    Path("out.safetensors").unlink()
    main(["convert", *given, "--resume"])
    assert "epoch 1 of 1" not in capsys.readouterr().out, "nothing is left to do but to write the file"
    assert load_weights(Path("out.safetensors")).classes == tuple("abcde")
    metrics = [path for path in before if path.name == "metrics.csv"]
    assert len(metrics) == 2
    assert all(path.read_bytes() == before[path] for path in metrics)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["vit_of_nobody"], "no model 'vit_of_nobody': expected a name of timm, or a weights file of this package"),
        (["gone.safetensors"], "gone.safetensors is not there: expected a weights file (.safetensors)"),
        (["teacher.safetensors", "--output", "out.pt"], "expected a file name that ends with .safetensors, got out.pt"),
        (["teacher.safetensors", "--output", "./teacher.safetensors"], "teacher.safetensors would overwrite the model"),
        (["vit_tiny_patch16_224", "--weights", "link.safetensors", "--output", "teacher.safetensors"], OVERWRITES),
        (["vit_tiny_patch16_224", "teacher.weights=link.safetensors", "--output", "teacher.safetensors"], OVERWRITES),
        (["vit_tiny_patch16_224", "teacher.name=teacher.safetensors", "--output", "./teacher.safetensors"], OVERWRITES),
        (["vit_tiny_patch16_224", "--recipe", "mine.yaml", "--output", "teacher.safetensors"], OVERWRITES),
        (["teacher.safetensors", "--output", "full.safetensors"], "can't write full.safetensors: it is a folder"),
        (["teacher.safetensors", "--output", "classes.json/out.safetensors"], "classes.json: Not a directory"),
        (["teacher.safetensors", "--data", "gone"], "there is no gone: give --data a folder that exists"),
        (["teacher.safetensors", "--recipe", "convert-vitt"], "no recipe 'convert-vitt', did you mean 'convert-vit'?"),
        (["teacher.safetensors", "--recipe", "digits"], "recipe digits: match is missing"),
        (["teacher.safetensors", "distil.epoch=3"], "unknown key distil.epoch, did you mean 'epochs'?"),
        (["teacher.safetensors", *ONE_EPOCH, "--layers", "1-2"], "no attention layer 2: the model has 2, 0 to 1"),
        (["teacher.safetensors", "--layers", "5-3"], "convert.layers must be numbers from 0, at least one"),
        (["vit_tiny_patch16_224", "--weights", "gone.pth"], "can't read the weights gone.pth: "),
        (["vit_tiny_patch16_224", "--weights", "teacher.pth", "--classes", "gone"], "can't read the classes gone: "),
    ],
    ids=lambda value: None if isinstance(value, list) else value[:30],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], given: list[str], reason: str
) -> None:
    Path("full.safetensors").mkdir()
    Path("link.safetensors").symlink_to("teacher.safetensors")
    name, recipe = "name: vit_tiny_patch16_224", Path(recipes.__path__[0], "convert-vit.yaml").read_text()
    Path("mine.yaml").write_text(recipe.replace(name, f"{name}\n  weights: teacher.safetensors"))
    before = files(here)
    if given[0].startswith("vit_tiny"):
        given = [*given, f"teacher.args={json.dumps(arguments())}", f"data.size={SIDE}"]
    assert reason in refused(capsys, *given)
    assert files(here) == before


def test_images_that_the_teacher_can_not_take_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = f"teacher.args={json.dumps({**arguments(), 'dynamic_img_size': True})}"
    said = refused(capsys, "vit_tiny_patch16_224", "--weights", "teacher.pth", args, *QUICK, "data.size=36")
    assert "can't take images of 3 x 36 x 36" in said


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "the following arguments are required: MODEL|FILE, --data, --output"),
        (["teacher.safetensors"], "the following arguments are required: --data, --output"),
        (["--layers", "1-x"], "argument --layers: expected numbers and ranges such as 0-5,8, got '1-x'"),
    ],
)
def test_what_argparse_refuses(capsys: pytest.CaptureFixture[str], given: list[str], reason: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["convert", *given])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith(f"laplacianformer convert: error: {reason}\n")


@pytest.mark.parametrize(
    ("text", "numbers"), [("3", (3,)), ("0-2,8", (0, 1, 2, 8)), ("2-2", (2,)), ("5-3", ()), ("1,0", (1, 0))]
)
def test_layers_are_numbers_and_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert layer_numbers(text) == numbers
