"""The comparison on Long Range Arena: what is trained, what is judged, and that a sweep that was stopped continues."""

import json
from pathlib import Path

import pytest
from PIL import Image

from laplacianformer import cli, sequences
from laplacianformer._util.errors import InputError
from laplacianformer.commands.train import data_overrides
from laplacianformer.experiments import long_range, long_range_runs
from laplacianformer.experiments.frame import Settings
from laplacianformer.experiments.rows import read_rows
from laplacianformer.sequences._task import create_encoder

pytest.importorskip("matplotlib")


def settings(folder: Path, *, quick: bool = False) -> Settings:
    return Settings(folder, folder, folder / "work", quick, cifar10="cifar10", imdb="imdb")


@pytest.mark.parametrize("quick", [False, True])
def test_every_training_is_one_of_its_recipe(quick: bool, tmp_path: Path) -> None:
    runs = long_range_runs.runs_of(settings(tmp_path, quick=quick))
    assert len({run.key for run in runs}) == len(runs) == (8 if quick else 3 * 4 * 12)
    for run in runs:
        recipe = sequences.load_recipe(run.recipe, [*data_overrides(run.data), *run.overrides])
        assert recipe.data.task == run.labels["task"]
        create_encoder(recipe, ("0", "1"))
    if not quick:
        assert {run.seed for run in runs[:40]} == {0}, "seeds are the outer loop"


def test_every_mixer_of_a_task_trains_as_long_and_on_the_same_data(tmp_path: Path) -> None:
    found: dict[str, set[str]] = {}
    for run in long_range_runs.runs_of(settings(tmp_path)):
        shared = [each for each in run.overrides if not each.startswith("encoder.attention")]
        found.setdefault(run.recipe, set()).add(" ".join(shared))
    assert {len(budgets) for budgets in found.values()} == {1}


def test_the_gain_of_the_recipe_is_not_kept_with_other_landmarks(tmp_path: Path) -> None:
    for run in long_range_runs.runs_of(settings(tmp_path)):
        encoder = sequences.load_recipe(run.recipe, run.overrides).encoder
        assert encoder.attention_args.get("gain", "auto") == "auto"


def rows(**accuracies: dict[str, list[float]]) -> list[dict[str, str]]:
    return [
        {
            "task": task,
            "attention": name,
            "seed": str(seed),
            "validation_accuracy": str(value / 100),
            "cpu_seconds": "9",
        }
        for task, found in accuracies.items()
        for name, values in found.items()
        for seed, value in enumerate(values)
    ]


OURS = {"laplacian": [60.0, 61.0, 62.0], "local": [50.0, 52.0, 51.0], "none": [40.0, 41.0, 43.0]}


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"softmax": [60.0, 61.5, 61.5]}, "agrees"),
        ({"softmax": [50.0, 51.0, 52.5]}, "agrees"),
        ({"softmax": [63.0, 64.0, 65.5]}, "disagrees"),
        ({"local": [50.0, 61.0, 62.0]}, "agrees in part"),
        ({"local": [50.0, 61.0, 62.0], "none": [51.0, 61.0, 62.0]}, "not confirmed at this scale"),
        ({"local": [60.0, 62.0, 61.0]}, "attention does not matter here"),
        ({"local": [60.0, 62.0, 61.0], "softmax": [63.0, 64.0, 65.5]}, "disagrees"),
    ],
)
def test_controls_are_to_lose_and_no_rival_is_to_win(changed, verdict) -> None:
    found = {**OURS, **changed}
    outcome = long_range.judge(rows(listops=found, text=found))
    assert outcome.verdict == verdict
    assert ("attention does not matter" in outcome.measured) == (verdict == "attention does not matter here")


def test_tasks_where_the_controls_are_not_beaten_take_no_part_in_the_comparison() -> None:
    """A token mixer that is ahead only where attention is worth nothing."""
    beaten = {**OURS, "softmax": [60.0, 61.0, 62.0]}
    level = {**OURS, "local": [60.0, 61.0, 62.0], "softmax": [61.5, 62.4, 63.6], "linear": [80.0, 81.0, 82.0]}
    outcome = long_range.judge(rows(listops={**beaten, "linear": [58.0, 60.0, 60.0]}, text=level))
    assert "text +1.50 ± 0.25 (attention does not matter here)" in outcome.measured
    assert "in which attention matters (listops): softmax +0.00 ± 0.00, linear -1.67" in outcome.measured
    assert outcome.verdict != "disagrees"


def test_tasks_are_pooled_and_reported_numbers_stand_beside() -> None:
    """Ahead on one task and behind on the other by as much: no difference."""
    ahead, behind = {**OURS, "softmax": [65.0, 66.0, 67.0]}, {**OURS, "softmax": [55.0, 56.0, 57.0]}
    outcome = long_range.judge(rows(listops=ahead, text=behind))
    assert "softmax +0.00 ±" in outcome.measured
    assert outcome.verdict == "agrees"
    assert "softmax 66.0 (38.4)" in outcome.measured
    assert "softmax 56.0 (62.0)" in outcome.measured or "softmax 56.0 (61.9)" in outcome.measured


def test_the_time_of_a_token_mixer_is_that_of_the_training_that_was_disturbed_least() -> None:
    found = [{**row, "cpu_seconds": str(30 - 10 * int(row["seed"]))} for row in rows(listops=OURS)]
    assert {row["cpu_seconds"] for row in long_range._table(found)} == {10}


def test_data_that_is_missing_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"give --cifar10 DIR .* and --imdb DIR"):
        long_range_runs.runs_of(Settings(tmp_path, tmp_path, tmp_path, False, cifar10="cifar10"))


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_from_the_command_line_to_the_plot_and_nothing_is_trained_twice(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "long-range", "--cifar10", "somewhere", "--imdb", "elsewhere"]
    cli.main(command)
    folder = tmp_path / "results" / "experiments" / "long-range"
    assert {path.name for path in folder.iterdir()} == {"verdict.json", "long-range.png", "accuracy.csv"}
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "attention does not matter here"
    table = read_rows(folder / "accuracy.csv")
    assert len(table) == 4 * 12
    assert {row["reported_accuracy"] for row in table if row["attention"] == "softmax"} == {
        *("38.37", "65.26", "40.57", "61.95")
    }
    with Image.open(folder / "long-range.png") as picture:
        assert min(picture.size) > 400
    cli.main(command)
    for started in (tmp_path / "runs" / "reproduce" / "full").glob("*/started"):
        assert len(started.read_text().splitlines()) == 1


@pytest.mark.slow
def test_the_quick_form_trains(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(long_range_runs, "QUICK", {"text": long_range_runs.QUICK["text"]})
    # One training, the control, under both names.
    monkeypatch.setattr(long_range_runs, "MIXERS", dict.fromkeys(long_range_runs.QUICK_MIXERS, ("none", "{}")))
    cli.main(["reproduce", "long-range", "--quick"])
    assert len(read_rows(tmp_path / "runs" / "quick" / "trainings" / "runs.csv")) == 1
