"""What the experiment on associative recall concludes, and that each of its trainings builds a model of its own."""

import json
from pathlib import Path

import pytest
import torch

from laplacianformer import cli
from laplacianformer.experiments import recall
from laplacianformer.experiments.frame import Settings
from laplacianformer.experiments.rows import read_rows
from laplacianformer.sequences import load_recipe
from laplacianformer.sequences._task import create_encoder

ROOT = Path(__file__).parents[2]


def full() -> Settings:
    return Settings(Path("results"), Path("trainings"), Path("work"), quick=False)


def rows(**accuracies: list[float]) -> list[dict[str, str]]:
    seeds = len(accuracies["softmax"])
    values = {name: [30, 31, 32][:seeds] for name in recall.VARIANTS} | {
        recall.STANDARD: accuracies["softmax"],
        recall.FEWER[0]: accuracies["fewer"],
    }
    return [
        {"attention": name, "seed": str(seed), "validation_accuracy": str(value / 100)}
        for name, found in values.items()
        for seed, value in enumerate(found)
    ]


@pytest.mark.parametrize(
    ("softmax", "fewer", "verdict"),
    [
        ([98, 99, 100], [97.9, 99, 100.1], "agrees"),
        ([98, 99, 100], [90, 99, 108], "not confirmed at this scale"),
        ([100], [27], "not confirmed at this scale"),
        ([98, 99, 100], [60, 61, 62], "disagrees"),
        ([31, 32, 33], [20, 21, 22], "attention does not matter here"),
    ],
)
def test_fewer_landmarks_are_to_recall_as_much_as_softmax(softmax, fewer, verdict) -> None:
    outcome = recall.judge(rows(softmax=softmax, fewer=fewer))
    assert outcome.verdict == verdict
    assert "Softmax attention is worth +" in outcome.measured


def test_every_training_is_a_model_that_differs_from_the_others() -> None:
    """The same first numbers of the generator, and a question."""
    tokens = torch.arange(1, 18)[None]
    outputs = []
    for run in recall.runs_of(full())[: len(recall.VARIANTS)]:
        torch.manual_seed(0)
        outputs.append(create_encoder(load_recipe(run.recipe, run.overrides), tuple("01234567")).eval()(tokens))
    assert all(not torch.equal(one, other) for one in outputs for other in outputs if one is not other)


def test_trainings_in_the_table_are_those_of_the_experiment() -> None:
    runs = {run.key: run.seed for run in recall.runs_of(full())}
    table = read_rows(ROOT / "results" / "experiments" / "trainings" / "runs.csv")
    made = {row["run"]: int(row["seed"]) for row in table if row["recipe"] == "probe-recall"}
    assert made == runs


@pytest.mark.usefixtures("stand_in")
def test_from_the_command_line_to_the_plot(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["reproduce", "recall"])
    folder = tmp_path / "results" / "experiments" / "recall"
    assert {path.name for path in folder.iterdir()} == {"verdict.json", "recall.png"}
    # The stand-in's accuracy is that of the seed.
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "attention does not matter here"
