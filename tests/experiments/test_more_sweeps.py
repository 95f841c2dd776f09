"""Sweeps with data, models or verdicts of their own: magnitudes, mixers, the gain in pyramids, CIFAR-100."""

import json

import pytest
import timm
import torch

from laplacianformer import cli
from laplacianformer.attention import ATTENTIONS
from laplacianformer.classification import load_recipe
from laplacianformer.experiments import cifar100, gain, gain_in_depth, magnitudes, mixers, trainings
from laplacianformer.experiments.frame import reproduce
from laplacianformer.experiments.rows import read_rows
from tests.experiments.helpers import rows

pytest.importorskip("matplotlib")
pytest.importorskip("lightning")


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "not confirmed at this scale"),
        ({"relative eps": [63, 64, 65]}, "agrees in part"),
        ({"relative eps": [57, 58, 59]}, "disagrees"),
        ({"all three": [63, 64, 65], "normalised values, gain 1": [57, 58, 59]}, "not confirmed at this scale"),
        ({name: [63, 64, 65] for name in magnitudes.CHOICES if name != magnitudes.NONE}, "agrees"),
    ],
)
def test_each_of_the_magnitudes_alone_is_to_beat_none_of_them(changed, verdict) -> None:
    same = {name: [60, 62, 61] for name in magnitudes.CHOICES} | {magnitudes.NONE: [60, 61, 62]}
    assert magnitudes.judge(rows("magnitudes", **same | changed)).verdict == verdict


@pytest.mark.usefixtures("stand_in")
def test_mixers_take_all_images_and_leave_a_table(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mixers, "MIXERS", {name: mixers.MIXERS[name] for name in ("laplacian", "softmax")})
    cli.main(["reproduce", "mixers", "--cifar10", "somewhere", "--seeds", "2"])
    folder = tmp_path / "results" / "experiments" / "mixers"
    trained = read_rows(tmp_path / "results" / "experiments" / "trainings" / "runs.csv")
    assert len(trained) == 2 * 4
    assert all("data.train_samples=null" in row["overrides"] for row in trained)
    written = json.loads((folder / "verdict.json").read_text())
    assert written["command"] == "laplacianformer reproduce mixers --seeds 2"
    table = read_rows(folder / "accuracy.csv")
    assert [row["mixer"] for row in table] == ["laplacian", "softmax", *trainings.CONTROLS]
    assert table[1]["accuracy"] == "7.0"  # of the stand-in, 2 % with seed 0 and 12 % with seed 1
    assert (folder / "mixers.png").exists()


def test_every_mixer_of_the_package_is_compared() -> None:
    """On the probe each is a model that takes its arguments."""
    for changes in mixers.MIXERS.values():
        loaded = load_recipe("probe", (*mixers.WHOLE, *trainings.placed(changes, "probe")))
        assert loaded.data.train_samples is None
        model = timm.create_model(loaded.model.name, num_classes=3, **loaded.model.args)
        assert model(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    named = {changes[0].partition("=")[2] for changes in mixers.MIXERS.values() if changes}
    assert named | {"laplacian"} == {*ATTENTIONS}


def of_models(**accuracies):
    """Rows of both models, of which the deep one has these accuracies."""
    same = {gain_in_depth.AUTO: [60, 61, 62], gain_in_depth.ONE: [60, 61, 62]}
    models = {"nano": rows("gain", **same), "depth of small": rows("gain", **same | accuracies)}
    return [{"model": model, **row} for model, found in models.items() for row in found]


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        ([60, 61, 62], "agrees"),
        ([57, 58, 59], "agrees"),
        ([60, 62, 61], "agrees in part"),
        ([62, 63, 64], "disagrees"),
    ],
)
def test_the_default_gain_is_not_to_lose_to_one_in_any_pyramid(one, verdict) -> None:
    assert gain_in_depth.judge(of_models(**{gain_in_depth.ONE: one})).verdict == verdict


@pytest.mark.usefixtures("stand_in")
def test_the_gain_is_compared_in_two_pyramids(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = reproduce("gain-in-depth", output=None, quick=False, cifar10="somewhere", seeds=1).outcome
    assert "nano: accuracy of 1 seed" in outcome.measured
    trained = read_rows(tmp_path / "results" / "experiments" / "trainings" / "runs.csv")
    assert len(trained) == 2 * len(gain_in_depth.GAINS)
    assert {row["recipe"] for row in trained} == {"ablation"}


def test_the_deep_pyramid_is_one_that_both_gains_fit() -> None:
    for changes in gain_in_depth.GAINS.values():
        loaded = load_recipe("ablation", (*gain_in_depth.DEPTH, *trainings.placed(changes, "ablation")))
        model = timm.create_model(loaded.model.name, num_classes=3, **loaded.model.args)
        assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
        assert sum(len(stage.blocks) for stage in model.stages) == 19


@pytest.mark.parametrize(
    ("softmax", "verdict"),
    [
        ([72, 73, 74], "agrees"),
        ([64, 65, 66], "agrees in part"),
        ([60, 62, 61], "disagrees"),
        ([57, 58, 59], "disagrees"),
        ([60, 75, 66], "not confirmed at this scale"),
    ],
)
def test_the_counter_claim_is_a_gap_of_nine_points(softmax, verdict) -> None:
    found = [
        row for row in rows("mixer", laplacian=[60, 61, 62], softmax=softmax) if row["mixer"] != "mean over queries"
    ]
    outcome = cifar100.judge(found, {"laplacian": 0.003, "softmax": 0.006})
    assert outcome.verdict == verdict
    assert "points here (laplacian minus no mixing; comparisons" in outcome.measured
    assert outcome.measured.endswith("laplacian 0.003, softmax 0.006.")


@pytest.mark.usefixtures("stand_in")
def test_learning_rates_are_chosen_on_held_out_training_images(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(20):
        for split in ("train", "test"):
            path = tmp_path / "data" / split / "a" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    outcome = reproduce("cifar100", output=None, quick=False, cifar100=str(tmp_path / "data"), seeds=2).outcome
    assert "accuracy of 2 seeds" in outcome.measured
    tuning = tmp_path / "runs" / "reproduce" / "full" / "cifar100"
    assert [len(list((tuning / part / "a").iterdir())) for part in ("tuning", "held-out")] == [18, 2]
    assert len({file.resolve() for file in tuning.glob("*/a/*")}) == 20
    results = tmp_path / "results" / "experiments"
    trained, tried = read_rows(results / "trainings" / "runs.csv"), read_rows(results / "cifar100" / "rates.csv")
    # All rates are equal to the stand-in: the smaller ones are the best, until there are enough.
    assert len(tried) == len(cifar100.ARMS) * cifar100.MOST_RATES
    assert len(trained) == len(tried) + 2 * len(cifar100.ARMS)
    final = [row for row in trained if "held-out" not in row["overrides"]]
    assert {row["overrides"].partition("optimise.lr=")[2] for row in final} == {"0.0001875"}


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"gain 1": [57, 58, 59]}, "agrees"),
        ({}, "not confirmed at this scale"),
        ({"gain 1": [57, 58, 59], "gain learned": [63, 64, 65]}, "disagrees"),
    ],
)
def test_the_default_gain_is_to_beat_one_and_not_to_lose_to_any(changed, verdict) -> None:
    same = {name: [60, 62, 61] for name in gain.GAINS} | {gain.DEFAULT_GAIN: [60, 61, 62]}
    assert gain.judge(rows("gain", **same | changed)).verdict == verdict
