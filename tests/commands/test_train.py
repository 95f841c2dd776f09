"""`laplacianformer train`: which task a recipe goes to, what is printed, and what is refused in one line."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from laplacianformer import classification, convert, detection, segmentation, sequences
from laplacianformer.classification import load_recipe
from laplacianformer.cli import main
from laplacianformer.commands.train import data_overrides
from tests.training import helpers


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images and a recipe of one epoch: `train --recipe own.yaml`."""
    monkeypatch.chdir(tmp_path)
    helpers.image_folder(Path("data"))
    helpers.write_recipe(Path("own.yaml"), Path("data"), optimise={"epochs": 1, "warmup_epochs": 0})
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that the command ends with."""
    with pytest.raises(SystemExit) as stop:
        main(["train", *arguments])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("laplacianformer train: ")
    return line.removeprefix("laplacianformer train: ")


@pytest.mark.parametrize(
    ("recipe", "task", "output"),
    [
        ("digits", classification, "runs/digits"),
        ("shapes-maskrcnn", detection, "runs/shapes-maskrcnn"),
        ("shapes-segmentation", segmentation, "runs/shapes-segmentation"),
        ("lra-listops", sequences, "runs/lra-listops"),
        ("convert-vit", convert, "runs/convert-vit"),
        ("some/own.yaml", classification, "runs/own"),
    ],
)
def test_the_sections_of_a_recipe_say_which_task_trains_it(
    recipe: str, task: Any, output: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("some").mkdir()
    shutil.copy("own.yaml", "some/own.yaml")
    trained: list[tuple[Any, ...]] = []
    for one in (classification, convert, detection, segmentation, sequences):
        monkeypatch.setattr(
            one, "train", lambda loaded, folder, *, resume, report, one=one: trained.append((one, folder, resume))
        )
    main(["train", "--recipe", recipe])
    main(["train", "--recipe", recipe, "--output", "other", "--resume"])
    assert trained == [(task, Path(output), False), (task, Path("other"), True)]


def test_options_come_before_overrides_and_the_last_override_counts(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr(classification, "train", lambda recipe, folder, **more: loaded.append((recipe, more)))
    given = ["data.root=last", "optimise.lr=1", "optimise.lr=2"]
    main(["train", *given, "--recipe", "own.yaml", "--data", "idx:first", "--weights", "laplacianformer_nano"])
    ((recipe, more),) = loaded
    assert (recipe.data.reader, recipe.data.root, recipe.optimise.lr) == ("idx", "last", 2)
    assert recipe.model.weights == "laplacianformer_nano"
    assert "allow_pipes" not in more


def test_the_reader_can_be_named_with_the_folder(tmp_path: Path) -> None:
    assert data_overrides(None) == []
    assert load_recipe("cifar10", data_overrides("idx:some/folder")).data.reader == "idx"
    assert load_recipe("cifar10", data_overrides("hfds/imagenet-1k:")).data.root is None
    assert load_recipe("cifar10", data_overrides("digits")).data.reader == "digits"
    odd = tmp_path / "a: b"
    odd.mkdir()
    assert load_recipe("cifar10", data_overrides(str(odd))).data.root == str(odd)


# ---- what is printed ----


def test_evaluations_are_one_line_each_and_tables_end_the_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--recipe", "own.yaml", "optimise.epochs=2"])
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line.startswith("epoch ")]
    assert [line[:18] for line in lines] == ["epoch 1 of 2: loss", "epoch 2 of 2: loss"]
    assert all(line.endswith(" images/s") for line in lines)
    for part in ("8/8", "best of all evaluations", "weights (averaged)", "runs/own/model.safetensors"):
        assert part in printed


def test_lines_of_an_evaluation_are_not_wrapped_where_the_output_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log is read line by line, and 80 columns are what rich takes a file for."""
    from laplacianformer.commands.progress import ProgressReport

    monkeypatch.setenv("COLUMNS", "40")
    line = "match, epoch 1 of 1: loss 0.101, agreement with the teacher 41.67%, 316.2 images/s"
    ProgressReport().row(0.1, line)
    assert capsys.readouterr().out == f"{line}\n"


# ---- the folder of the run ----


def test_there_may_be_nothing_to_resume_and_a_finished_run_is_not_overwritten(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run").mkdir()
    Path("run/notes.txt").write_text("kept")
    given = ["--recipe", "own.yaml", "--output", "run"]
    main(["train", *given, "--resume"])
    assert "epoch 1 of 1: loss" in capsys.readouterr().out
    assert Path("run/notes.txt").read_text() == "kept"
    before = helpers.rows(Path("run")), Path("run/checkpoint.pt").read_bytes()

    said = refused(capsys, *given)
    assert said == "run already holds a run: pass --resume to continue it, or another --output"
    main(["train", *given, "--resume"])
    assert "epoch 1 of 1" not in capsys.readouterr().out, "nothing is left to do"
    assert (helpers.rows(Path("run")), Path("run/checkpoint.pt").read_bytes()) == before


def test_a_folder_that_can_not_be_written_is_reported_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for output, reason in ((tmp_path / "file" / "run", "Not a directory"), (Path("/proc/run"), "")):
        said = refused(capsys, "--recipe", "cifar10", "--data", "/nowhere", "--output", str(output))
        assert said.startswith(f"can't write {output}: {reason}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---- what is refused ----


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--recipe", "digit"], "no recipe 'digit', did you mean 'digits'?: give a .yaml file or one of ablation, "),
        (["--recipe", "gone.yaml"], "can't read the recipe gone.yaml: "),
        (["--recipe", "broken.yaml"], "broken.yaml is not YAML: "),
        (["--recipe", "digits", "epochs=3"], "override 'epochs=3': expected section.key=value, for example "),
        (["--recipe", "digits", "optimise.epochs"], "override 'optimise.epochs': expected section.key=value"),
        (["--recipe", "digits", "optimise.epoch=3"], "recipe digits: unknown key optimise.epoch, did you mean "),
        (["--recipe", "digits", "optimise.epochs=0"], "recipe digits: optimise.epochs: input should be greater than"),
        (["--recipe", "digits", "optimise.epochs=many"], "optimise.epochs: input should be a valid integer"),
        (["--recipe", "digits", "run.accelerator=tpu"], "run.accelerator: input should be 'auto', 'cpu' or 'gpu'"),
        (["--recipe", "cifar10"], "the reader 'folder' needs a folder: give --data DIR"),
        (["--recipe", "digits", "data.std=[0, 0, 0]"], "data.std.0: input should be greater than or equal to 0.000001"),
        (["--recipe", "digits", "model.name=laplacianformer_minute"], "can't create model.name"),
        (["--recipe", "digits", "model.args.attention=magic"], "attention must be one of"),
        (["--recipe", "digits", "optimise.optimiser=magic"], "can't create optimise.optimiser=magic"),
        (["--recipe", "digits", "--epochs", "3"], "unknown argument --epochs: see laplacianformer train --help"),
        (["--recipe", "own.yaml", "--data", "gone"], "there is no gone: give --data a folder that exists"),
        (["--recipe", "own.yaml", "--data", "none/of:data"], "unknown reader 'none/of': expected folder, digits, "),
        (["--recipe", "own.yaml", "--weights", "gone.safetensors"], "gone.safetensors is not there: expected a "),
        (["--recipe", "own.yaml", "--weights", "no_model"], "there is no file no_model, and timm has no model of "),
        (["--recipe", "own.yaml", "--weights", "broken.yaml"], "broken.yaml"),
        (["--recipe", "own.yaml", "optimise.batch_size=25"], "optimise.batch_size=25 is more than the 24 training "),
        (
            ["--recipe", "shapes-segmentation", "--data", "folders:x", "--allow-pipes"],
            "--allow-pipes is for classifiers of images: nothing else is trained on WebDataset shards",
        ),
    ],
    ids=lambda value: None if isinstance(value, list) else value[:30],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    Path("broken.yaml").write_text("model: [")
    before = sorted(path for path in here.rglob("*") if path.is_file())
    assert reason in refused(capsys, *arguments)
    assert sorted(path for path in here.rglob("*") if path.is_file()) == before


def test_a_recipe_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith(": the following arguments are required: --recipe\n")
