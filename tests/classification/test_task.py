"""A run from a recipe: what it learns, writes and reports."""

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open

from laplacianformer._util.errors import InputError
from laplacianformer.classification import _task as classification
from laplacianformer.classification._evaluation import evaluate, open_batches
from laplacianformer.classification._recipe import load_recipe
from laplacianformer.classification._task import COLUMNS
from laplacianformer.training import _checkpoint as checkpoint
from laplacianformer.weights import load_weights
from tests.training import helpers


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, classification.Result]:
    folder = tmp_path_factory.mktemp("finished")
    recipe = helpers.tiny(
        folder, optimise={"epochs": 12, "ema_decay": 0.95}, augment={"mixup": 0.0}, run={"tensorboard": True}
    )
    return folder, classification.train(recipe, folder / "run")


def test_a_run_learns_and_says_how_well(finished: tuple[Path, classification.Result]) -> None:
    folder, result = finished
    rows = helpers.rows(folder / "run")
    losses = [float(row["loss"]) for row in rows]
    assert losses[-1] < 0.8 * losses[0]
    assert result.accuracy > 0.6, "three classes"
    scored = [float(row["validation_accuracy"]) for row in rows if row["validation_accuracy"]]
    assert len(scored) == 12
    assert (result.accuracy, result.best_accuracy) == (scored[-1], max(scored))


def test_rows_are_as_documented(finished: tuple[Path, classification.Result]) -> None:
    folder, _ = finished
    header = (folder / "run" / "metrics.csv").read_text().splitlines()[0]
    assert header == ",".join(COLUMNS)
    rows = helpers.rows(folder / "run")
    assert [int(row["step"]) for row in rows] == sorted({*range(3, 49, 3), *range(4, 49, 4)})
    for row in rows:
        for column in ("kernel_mean", "query_dependence", "contribution"):
            assert 0 < float(row[column]) < 1, column
        assert 0 <= float(row["residual"]) < 1
        assert float(row["gradient_norm"]) > 0
    rates = [float(row["lr"]) for row in rows]
    assert max(rates) == pytest.approx(2e-3, rel=0.02)
    assert rates[0] < rates[1] < rates[2], "warm-up"
    assert rates[-1] < 1e-4, "cosine"
    (events,) = (folder / "run" / "tensorboard").iterdir()
    assert b"query_dependence/stages.1.blocks.0.attention" in events.read_bytes()


def test_the_exported_file_holds_the_average_and_its_origin(finished: tuple[Path, classification.Result]) -> None:
    folder, result = finished
    state = checkpoint.load(folder / "run")
    exported = helpers.weights(folder / "run")
    assert all(torch.equal(exported[name], state["average"][name]) for name in exported)
    assert any(not torch.equal(exported[name], state["model"][name]) for name in exported)
    with safe_open(result.weights, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["architecture"] == "laplacianformer_nano"
    assert json.loads(metadata["model_args"])["num_classes"] == 3
    assert json.loads(metadata["classes"]) == ["class0", "class1", "class2"]
    assert json.loads(metadata["input"])["size"] == [3, 16, 16]
    metrics = json.loads(metadata["metrics"])
    assert metrics["accuracy"] == result.accuracy
    assert metrics["ema_decay"] == pytest.approx(1 - 48 ** (-2 / 3)), "after 48 steps, not yet the 0.95 of the recipe"
    assert metadata["weights"] == "exponential moving average"
    assert yaml.safe_load(metadata["recipe"])["optimise"]["epochs"] == 12
    assert str(folder) not in "".join(metadata.values()), "the folder of the data is not in the file"
    assert {"commit", "date", "version"} <= metadata.keys()


def test_eval_measures_the_accuracy_that_training_reports(finished: tuple[Path, classification.Result]) -> None:
    folder, result = finished
    loaded = load_weights(result.weights)
    measured = evaluate(loaded, open_batches(loaded, str(folder / "data")))
    assert (measured.top1, measured.images) == (result.accuracy, 12)


def test_a_finished_run_is_not_overwritten_and_resuming_it_changes_nothing(
    finished: tuple[Path, classification.Result],
) -> None:
    folder, result = finished
    recipe = load_recipe(str(folder / "recipe.yaml"))
    with pytest.raises(InputError, match=r"already holds a run: pass --resume"):
        classification.train(recipe, folder / "run")
    before = helpers.weights(folder / "run"), helpers.rows(folder / "run")
    again = classification.train(recipe, folder / "run", resume=True)
    after = helpers.weights(folder / "run"), helpers.rows(folder / "run")
    assert again.accuracy == result.accuracy
    assert after[1] == before[1]
    assert all(torch.equal(after[0][name], before[0][name]) for name in before[0])


def test_only_the_same_run_is_resumed(finished: tuple[Path, classification.Result], tmp_path: Path) -> None:
    folder, _ = finished
    path = str(folder / "recipe.yaml")
    other = load_recipe(path, ["optimise.lr=1", "run.seed=1"])
    with pytest.raises(InputError, match=r"was started with another optimise\.lr, run\.seed"):
        classification.train(other, folder / "run", resume=True)
    data = helpers.image_folder(tmp_path / "data", classes=4)
    more = load_recipe(path, [f"data.root={data}", "optimise.batch_size=8"])
    with pytest.raises(InputError, match=r"has 3 classes \(class0, class1, class2\), the data has 4"):
        classification.train(more, folder / "run", resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: shutil.copy(data / "train/class0/0.png", data / "train/class1/new.png"),
            "24 training images, .* 25",
        ),
        (lambda data: (data / "val/class2/1.png").unlink(), "12 held-out images, .* 11"),
    ],
    ids=["more", "fewer"],
)
def test_a_run_is_not_resumed_on_other_data(
    finished: tuple[Path, classification.Result], tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    folder, _ = finished
    shutil.copytree(folder / "data", tmp_path / "data")
    recipe = load_recipe(str(folder / "recipe.yaml"), [f"data.root={tmp_path / 'data'}"])
    classification.train(recipe, folder / "run", resume=True)  # it may have been moved
    change(tmp_path / "data")
    with pytest.raises(
        InputError, match=rf"was started with {message}: give the data of that run, or another --output"
    ):
        classification.train(recipe, folder / "run", resume=True)


def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    recipe = helpers.tiny(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"can't read the checkpoint .*run/checkpoint\.pt"):
        classification.train(recipe, tmp_path / "run", resume=True)
    torch.save({"step": 3, "model": {}}, tmp_path / "run" / "checkpoint.pt")
    with pytest.raises(InputError, match=r"is not a checkpoint of this version \(no average, optimiser"):
        classification.train(recipe, tmp_path / "run", resume=True)


def test_other_token_mixers_and_no_average_train_too(tmp_path: Path) -> None:
    attention = {**helpers.MODEL, "attention": "softmax"}
    recipe = helpers.tiny(tmp_path, model={"args": attention}, optimise={"epochs": 2, "ema_decay": 0.0})
    classification.train(recipe, tmp_path / "run")
    assert helpers.rows(tmp_path / "run")[-1]["kernel_mean"] == ""
    state, exported = checkpoint.load(tmp_path / "run"), helpers.weights(tmp_path / "run")
    assert all(torch.equal(exported[name], state["model"][name]) for name in exported)


def test_a_full_disk_leaves_what_was_there_and_ends_in_one_line(tmp_path: Path) -> None:
    """A limit on the size of files fails as a full disk does: in the middle of a write."""
    recipe = helpers.tiny(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(InputError, match=r"can't write .*run/checkpoint\.pt: File too large") as error:
            classification.train(recipe, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.csv"]
    assert len(helpers.rows(tmp_path / "run")) == 1
