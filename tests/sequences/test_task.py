"""A run on sequences: what it learns and writes, that it resumes bit for bit, and its weights in eval and predict."""

import json
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open

from laplacianformer import sequences
from laplacianformer._util.errors import InputError
from laplacianformer.cli import main
from laplacianformer.inspect import without_attention
from laplacianformer.sequences._task import COLUMNS, create_encoder
from laplacianformer.training import _checkpoint as checkpoint
from laplacianformer.training._optimiser import create_schedule
from laplacianformer.weights import load_weights
from tests.helpers import picture
from tests.sequences import helpers
from tests.training.helpers import forking, image_folder, rows, weights


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, sequences.Result]:
    folder = tmp_path_factory.mktemp("finished")
    texts = helpers.text_folder(folder / "texts", train=32, test=16)
    recipe = helpers.tiny(
        folder,
        data={"task": "text", "root": str(texts), "length": 96, "train_samples": None, "val_samples": None},
        optimise={"epochs": 12, "lr": 1e-2},
        encoder={"attention_args": {"gain": 2.0}},
    )
    return folder, sequences.train(recipe, folder / "run")


def test_a_run_learns_and_says_how_well(finished: tuple[Path, sequences.Result]) -> None:
    folder, result = finished
    found = rows(folder / "run")
    losses = [float(row["loss"]) for row in found]
    assert losses[-1] < 0.7 * losses[0]
    assert result.accuracy > 0.8, "words of two classes"
    assert (folder / "run" / "metrics.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    scored = [float(row["validation_accuracy"]) for row in found if row["validation_accuracy"]]
    assert (result.accuracy, result.best_accuracy) == (scored[-1], max(scored))
    for column in ("kernel_mean", "query_dependence", "contribution"):
        assert all(0 < float(row[column]) < 1 for row in found), column
    rates = [float(row["lr"]) for row in found]
    assert max(rates) == pytest.approx(1e-2, rel=0.05)


def test_the_rate_rises_and_falls_in_a_line(tmp_path: Path) -> None:
    optimise = helpers.tiny(tmp_path).optimise
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    schedule = create_schedule(optimiser, optimise, 10)
    rates = []
    for step in range(40):
        schedule.step_update(step)
        rates.append(optimiser.param_groups[0]["lr"])
    falls = [a - b for a, b in pairwise(rates[10:])]
    assert max(rates) == rates[10] == pytest.approx(2e-3)
    assert falls == pytest.approx([2e-3 / 30] * 29)


def test_the_file_says_what_it_holds_and_is_read_back(finished: tuple[Path, sequences.Result]) -> None:
    folder, result = finished
    with safe_open(result.weights, framework="pt") as file:
        said = file.metadata()
    assert (said["task"], said["sequence"], said["architecture"]) == ("sequences", "text", "sequence_encoder")
    assert json.loads(said["classes"]) == ["neg", "pos"]
    assert json.loads(said["metrics"])["accuracy"] == result.accuracy
    assert yaml.safe_load(said["recipe"])["optimise"]["epochs"] == 12
    assert str(folder) not in "".join(said.values()), "the folder of the data is not in the file"
    loaded = sequences.load_encoder(result.weights)
    assert loaded.model.arguments["attention_args"] == {"gain": 2.0}
    found = loaded.model.state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in weights(folder / "run").items())


def test_a_file_that_was_saved_gives_the_same_outputs(tmp_path: Path) -> None:
    model = sequences.SequenceEncoder(257, 30, 2, pairs=True, landmarks=4, dim=16, attention="performer").eval()
    path = tmp_path / "model.safetensors"
    sequences.save_encoder(path, model, sequence="retrieval", classes=("different", "same"))
    tokens = torch.randint(257, (3, 2, 20))
    assert torch.equal(sequences.load_encoder(path).model(tokens), model(tokens))
    with pytest.raises(InputError, match="expected pairs for retrieval, and for nothing else"):
        sequences.save_encoder(path, model, sequence="text", classes=("different", "same"))
    with pytest.raises(InputError, match=r"names \['one'\] for an encoder of 2 classes"):
        sequences.save_encoder(path, model, sequence="retrieval", classes=("one",))
    with pytest.raises(InputError, match="expected a vocabulary of 16"):
        sequences.save_encoder(path, model, sequence="listops", classes=("different", "same"))
    with pytest.raises(InputError, match="holds a sequence encoder: expected a classifier; laplacianformer predict"):
        load_weights(path)


def test_a_run_starts_from_the_weights_of_an_encoder(finished: tuple[Path, sequences.Result], tmp_path: Path) -> None:
    """Body and head for the same task and classes; the body alone for others."""
    _, result = finished
    start = weights(result.folder)
    recipe = sequences.load_recipe(str(finished[0] / "recipe.yaml"), [f"model.weights={result.weights}"])
    assert recipe.encoder.attention_args == {"gain": 2.0}
    same = create_encoder(recipe, ("neg", "pos")).state_dict()
    assert all(torch.equal(same[name], start[name]) for name in start)
    for other in (create_encoder(recipe, ("no", "yes")), create_encoder(recipe, ("a", "b", "c"))):
        found = other.state_dict()
        replaced = {name for name in start if not torch.equal(found[name], start[name])}
        assert replaced >= {"head.0.weight", "head.2.weight"}
        assert all(name.startswith("head.") for name in replaced)
    wider = sequences.load_recipe(
        str(finished[0] / "recipe.yaml"), [f"model.weights={result.weights}", "encoder.dim=32"]
    )
    with pytest.raises(InputError, match=r"does not hold the sequence_encoder of the recipe.*has shape"):
        create_encoder(wider, ("neg", "pos"))


def test_eval_measures_the_accuracy_that_training_reports(
    finished: tuple[Path, sequences.Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, result = finished
    given = ["--weights", str(result.weights), "--data", str(folder / "texts"), "--workers", "0"]
    main(["eval", *given, "--output", str(tmp_path), "--without-attention", "mean"])
    measured = json.loads((tmp_path / "eval.json").read_text())
    assert (measured["accuracy"], measured["sequences"]) == (result.accuracy, 32)
    without = measured["without_attention"]
    assert without["layers"] == ["layers.0.attention"]
    loaded = sequences.load_encoder(result.weights)
    with without_attention(loaded.model, "mean"):
        assert without["accuracy"] == sequences.evaluate(loaded, sequences.open_batches(loaded, given[3])).accuracy
    assert (tmp_path / "confusion.png").exists()
    printed = capsys.readouterr().out
    assert f"{100 * result.accuracy:.2f} %" in printed
    assert "neg" in printed


def predicted(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = 0
    try:
        main(["predict", "--json", *arguments])
    except SystemExit as stop:
        code = int(str(stop.code))
    return code, json.loads(capsys.readouterr().out)


def test_predict_takes_text_files(
    finished: tuple[Path, sequences.Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--weights", str(finished[1].weights)]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("good great fine " * 5)
    (tmp_path / "texts" / "b.txt").write_bytes(b"bad awful poor \xff\xfe" * 5)
    (tmp_path / "empty.txt").touch()
    names = [str(tmp_path / name) for name in ("texts", "empty.txt", "none.txt")]
    code, said = predicted(capsys, *given, *names)
    assert code == 1
    assert [entry["classes"][0]["class"] for entry in said["predictions"]] == ["pos", "neg"]
    reasons = [entry["reason"] for entry in said["failures"]]
    assert reasons == [f"{names[1]} is empty: expected a text of at least one byte", "no such file or folder"]
    main(["predict", *given, names[0]])
    assert "up to 96 tokens" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["predict", *given, names[0], "--attention", str(tmp_path / "a.png")])


def test_predict_takes_expressions_images_and_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"landmarks": 4, "dim": 16}
    listops = sequences.SequenceEncoder(16, 20, 10, **small).eval()
    sequences.save_encoder(tmp_path / "listops", listops, sequence="listops", classes=tuple("0123456789"))
    (tmp_path / "lines.txt").write_text("[MIN 1 2 ]\n\n[SM 1 ] 2\n")
    given = ["--weights", str(tmp_path / "listops"), "--top", "10"]
    code, said = predicted(capsys, *given, "[MAX 4 [MIN 2 3] 1]", str(tmp_path / "lines.txt"), f"[MAX {'1 ' * 30}]")
    assert code == 1
    assert [entry["sequence"] for entry in said["predictions"]][1] == f"{tmp_path / 'lines.txt'}, line 1"
    reasons = [entry["reason"] for entry in said["failures"]]
    assert reasons[1] == "32 tokens, the model takes 20 at most"
    tokens = torch.tensor([[2, 10, 1, 8, 9, 5, 7, 5]])
    expected = listops(tokens).softmax(1)[0]
    for entry in said["predictions"][0]["classes"]:  # padded to the longest of the batch, and not
        assert entry["probability"] == pytest.approx(expected[int(entry["class"])].item(), abs=1e-5)

    image = sequences.SequenceEncoder(256, 64, 2, **small).eval()
    sequences.save_encoder(tmp_path / "image", image, sequence="image", classes=("cat", "dog"))
    picture(1).save(tmp_path / "cat.png")
    code, said = predicted(capsys, "--weights", str(tmp_path / "image"), str(tmp_path / "cat.png"))
    assert (code, len(said["predictions"])) == (0, 1)

    pairs = sequences.SequenceEncoder(257, 64, 2, pairs=True, **small).eval()
    sequences.save_encoder(tmp_path / "pairs", pairs, sequence="retrieval", classes=("different", "same"))
    line = str(tmp_path / "lines.txt")
    code, said = predicted(capsys, "--weights", str(tmp_path / "pairs"), line, line)
    assert (code, len(said["predictions"])) == (0, 1)
    with pytest.raises(SystemExit, match="2"):
        main(["predict", "--weights", str(tmp_path / "pairs"), line])
    assert "expected an even number of files, got 1" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["listops", "pathfinder", "image", "retrieval"])
def test_every_task_trains_and_is_evaluated(task: str, tmp_path: Path) -> None:
    data: dict[str, Any] = {"task": task}
    root = task
    if task == "image":
        root = data["root"] = str(image_folder(tmp_path / "data"))
        data |= {"length": 64, "train_samples": None, "val_samples": None}
    elif task == "retrieval":
        root = data["root"] = str(helpers.pair_folder(tmp_path / "data"))
        data |= {"train_samples": None, "val_samples": None}
    elif task == "pathfinder":
        data |= {"length": 1024, "train_samples": 8, "val_samples": 4, "cache": True}
    recipe = helpers.tiny(tmp_path, data=data, optimise={"epochs": 2})
    result = sequences.train(recipe, tmp_path / "run")
    loaded = sequences.load_encoder(result.weights)
    measured = sequences.evaluate(loaded, sequences.open_batches(loaded, root))
    assert measured.accuracy == result.accuracy
    test = sequences.evaluate(loaded, sequences.open_batches(loaded, root, "train")) if task != "pathfinder" else None
    assert test is None or test.sequences > 0


def test_a_generated_task_is_evaluated_by_its_name(tmp_path: Path) -> None:
    model = sequences.SequenceEncoder(16, 2000, 10, landmarks=4, dim=16).eval()
    sequences.save_encoder(tmp_path / "listops", model, sequence="listops", classes=tuple("0123456789"))
    loaded = sequences.load_encoder(tmp_path / "listops")
    with pytest.raises(InputError, match=r"is for generated sequences: give --data listops, not texts"):
        sequences.open_batches(loaded, "texts")
    first, second = (next(iter(sequences.open_batches(loaded, "listops", split))) for split in ("validation", "test"))
    assert first.tokens.shape != second.tokens.shape or not torch.equal(first.tokens, second.tokens)


KILL = """
import os, signal
from pathlib import Path
from laplacianformer import sequences
from laplacianformer.training import Loop

def run(recipe, output, calls):
    original, left = Loop.advance, [int(calls)]

    def counted(*arguments):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    Loop.advance = counted
    sequences.train(sequences.load_recipe(recipe), Path(output), resume=True)
"""


@pytest.fixture(scope="module")
def killed() -> Iterator[Callable[..., int]]:
    with forking(KILL) as call:
        yield call


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["laplacian", "nystromformer"])
def test_killed_and_resumed_gives_the_same_bits(attention: str, killed: Callable[..., int], tmp_path: Path) -> None:
    recipe = helpers.tiny(tmp_path, encoder={"attention": attention}, data={"workers": 1})
    whole = sequences.train(recipe, tmp_path / "whole")
    assert killed(tmp_path / "recipe.yaml", tmp_path / "killed", 8) == -signal.SIGKILL
    assert checkpoint.load(tmp_path / "killed")["step"] == 6
    resumed = sequences.train(recipe, tmp_path / "killed", resume=True)
    assert rows(resumed.folder) == rows(whole.folder)
    expected, found = weights(whole.folder), weights(resumed.folder)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert (resumed.accuracy, resumed.best_accuracy) == (whole.accuracy, whole.best_accuracy)


WRONG = {
    "mixer": (["encoder.attention=magic"], "can't create the encoder with encoder.attention=magic: attention must be"),
    "argument": (["encoder.attention_args={magic: 1}"], "can't create the encoder"),
    "nothing left": (["encoder.attention=local", "encoder.local=false"], "local=False would leave nothing of it"),
    "task": (["data.task=sorting"], "data.task: "),
    "no folder": (["data.task=text"], "the task 'text' reads texts: give --data DIR"),
    "square": (["data.task=image", "data.length=1000"], "data.length must be a square number for image, got 1000"),
    "pathfinder": (["data.task=pathfinder", "data.length=900"], "data.length must be 1024 for pathfinder"),
    "shortest": (["data.shortest=2000"], "data.shortest must be at least 4 below data.length"),
    "number": (["data.train_samples=null"], "is generated: give data.train_samples=N and data.val_samples=N"),
    "axes": (["encoder.axes=2"], "encoder.axes=2 is for images (pathfinder, image, inpaint), not for listops"),
    "squares": (
        ["data.task=inpaint", "data.length=60"],
        "data.length must be a square number for inpaint, got 60",
    ),
    "sharding": (["run.strategy=fsdp"], "run.strategy=fsdp is for classification"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_ends_with_one_line_and_code_2_and_writes_nothing(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides, message = WRONG[what]
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--recipe", "lra-listops", "--output", str(tmp_path / "run"), "data.workers=0", *overrides])
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()
