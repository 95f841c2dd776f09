"""Experiments that train: what they vary, what their verdicts follow from, and each from the command line to the plot
with a stand-in for the trainings."""

import json
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

from laplacianformer import cli
from laplacianformer.classification import load_recipe
from laplacianformer.experiments import (
    attention,
    attention_maps,
    defaults,
    gain,
    kernel_convergence,
    magnitudes,
    other_kernels,
    qk_distances,
    scale,
    solver_accuracy,
    trainings,
    variants,
    whitening,
)
from laplacianformer.experiments.frame import Settings, reproduce
from laplacianformer.experiments.rows import read_rows
from laplacianformer.experiments.starts import Start
from laplacianformer.experiments.sweep import ABLATION, Training
from laplacianformer.sequences import load_recipe as load_sequences
from laplacianformer.sequences._task import create_encoder

pytest.importorskip("matplotlib")
pytest.importorskip("lightning")
ROOT = Path(__file__).parents[2]
SWEEPS = {
    "attention": attention.KINDS,
    "kernel-convergence": kernel_convergence.VARIANTS,
    "solver-accuracy": solver_accuracy.SOLVERS,
    "lambda": scale.COMPARED,
    "whitening": whitening.KINDS,
    "other-kernels": other_kernels.KERNELS,
    "gain": gain.GAINS,
    "defaults": defaults.CHOICES,
    "magnitudes": magnitudes.CHOICES,
}


def rows(column, **accuracies):
    controls = {name: [40, 41, 42] for name in trainings.CONTROLS}
    return [
        {column: kind, "seed": str(seed), "validation_accuracy": str(value / 100)}
        for kind, values in (controls | accuracies).items()
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_the_default_run_and_no_training_twice(name) -> None:
    every = list(SWEEPS[name].values())
    assert trainings.DEFAULT in every or name == "lambda"  # which is without the norm of queries and keys
    assert len(set(every)) == len(every)


def encoder(overrides):
    return create_encoder(load_sequences(trainings.LISTOPS, ("encoder.depth=1", *overrides)), ("a", "b", "c"))


def small_classifier(overrides):
    """The arguments of the attention do not depend on the size."""
    small = {"depths": [1], "embed_dims": [32], "num_heads": [1], "mlp_ratios": [1]}
    args = load_recipe("imagenet", ("model.args.attention_args.qk_norm=true", *overrides)).model.args
    return timm.create_model("laplacianformer_nano", num_classes=3, **args | small)


@pytest.mark.parametrize(
    ("recipe", "build", "inputs"),
    [
        (trainings.LISTOPS, encoder, torch.arange(40).reshape(2, 20) % 13 + 1),
        ("imagenet", small_classifier, torch.linspace(-1, 1, 2 * 3 * 32 * 32).sin().reshape(2, 3, 32, 32)),
    ],
)
def test_every_variant_is_a_model_that_differs_from_the_others(recipe, build, inputs) -> None:
    """With the recipes of both scales."""
    outputs = {}
    for changes in {changes for sweep in (*SWEEPS.values(), trainings.CONTROLS) for changes in sweep.values()}:
        torch.manual_seed(0)
        model = build(trainings.placed(changes, recipe))
        output = model(inputs)
        output.square().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
        outputs[changes] = output.detach()
    del outputs[gain.GAINS["gain learned"]]  # is the default at the start of a training
    for changes, output in outputs.items():
        same = [name for name, other in outputs.items() if torch.equal(output, other)]
        assert same == [changes]


def full(**given) -> Settings:
    return Settings(Path("results"), Path("trainings"), Path("work"), quick=False, **given)


def test_rows_of_the_probe_are_found_again_by_the_sweeps() -> None:
    """A training that is in the table is not made again."""
    variants = [{**found, **trainings.CONTROLS} for found in SWEEPS.values()]
    runs = {run.key: run for each in variants for run in trainings.runs_of(full(), each, "kind")}
    rows = read_rows(ROOT / "results" / "experiments" / "trainings" / "runs.csv")
    made = [row for row in rows if row["recipe"] == trainings.LISTOPS]
    assert made
    for row in made:
        run = runs[row["run"]]
        assert int(row["seed"]) == run.seed
        assert set(row["overrides"].split(" encoder.")) == set(" ".join(run.overrides).split(" encoder."))


@pytest.mark.parametrize(("module", "column"), [(attention_maps, "model"), (qk_distances, "model")])
def test_every_run_of_experiments_that_inspect_trained_models_has_its_row(module, column, monkeypatch) -> None:
    class Asked(Exception):
        pass

    def asked(settings, runs, weights):
        raise Asked(runs)

    monkeypatch.setattr(module, "train", asked)
    with pytest.raises(Asked) as raised:
        module.run(full(cifar10="anywhere"))
    recorded = {row["run"] for row in read_rows(ROOT / "results" / "experiments" / "trainings" / "runs.csv")}
    assert {run.key for run in raised.value.args[0]} <= recorded


def test_options_that_only_compare_are_those_of_the_ablation_mixer() -> None:
    assert trainings.with_arguments(kernel="gaussian") == ("attention=ablation", "attention_args.kernel=gaussian")
    assert trainings.with_arguments(whitening="full")[0] == "attention=ablation"
    for arguments in ({"whitening": "null"}, {"scale": 2}, {"gain": "learned"}, {"iterations": 12}):
        assert "attention=ablation" not in trainings.with_arguments(**arguments)
    plain, renamed = Training("ablation", {}, ("a=1",), 0), Training("ablation", {}, ("a=1", ABLATION), 0)
    assert plain.key == renamed.key
    assert ABLATION in renamed.arguments


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", SWEEPS)
def test_from_the_command_line_to_the_plot(name, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["reproduce", name, "--cifar10", "somewhere"])
    folder = tmp_path / "results" / "experiments" / name
    written = json.loads((folder / "verdict.json").read_text())
    assert written["verdict"] == "attention does not matter here"  # the stand-in's accuracy is that of the seed
    assert "Attention is worth +0.00 ± 0.00 points here" in written["measured"]
    assert "does not matter" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"verdict.json", f"{name}.png"}  # no copies of rows
    assert len(read_rows(tmp_path / "results" / "experiments" / "trainings" / "runs.csv")) == (
        trainings.SEEDS * (len(SWEEPS[name]) + len(trainings.CONTROLS))
    )
    with Image.open(folder / f"{name}.png") as picture:
        assert min(picture.size) > 400


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ({"b": [57, 58, 59], "c": [50, 51, 52]}, "agrees"),
        ({"b": [57, 58, 59], "c": [59, 62, 61]}, "agrees in part"),
        ({"b": [59, 62, 61], "c": [61, 60, 62]}, "not confirmed at this scale"),
        ({"b": [57, 58, 59], "c": [70, 71, 72]}, "disagrees"),
    ],
)
def test_only_differences_beyond_the_noise_count(others, verdict) -> None:
    outcome = variants.judge(rows("kind", a=[60, 61, 62], **others), "kind", "a")
    assert outcome.verdict == verdict
    assert "a 61.00 ± 1.00, b " in outcome.measured


def test_only_the_named_rivals_count() -> None:
    found = rows("kind", a=[60, 61, 62], b=[57, 58, 59], c=[70, 71, 72])
    assert variants.judge(found, "kind", "a", ["b"]).verdict == "agrees"


@pytest.mark.parametrize(
    ("mean", "worth", "verdict"),
    [
        ([50, 51, 52], "+10.00 ± 0.00", "agrees"),
        ([58, 59, 60], "+2.00 ± 0.00", "agrees"),
        ([58.1, 59.1, 60.1], "+1.90 ± 0.00", "attention does not matter here"),
        ([70, 71, 72], "-10.00 ± 0.00", "attention does not matter here"),
    ],
)
def test_nothing_is_said_where_attention_is_worth_less_than_two_points(mean, worth, verdict) -> None:
    """Over the better of the controls; the other one is 20 points behind."""
    given = {"a": [60, 61, 62], "b": [57, 58, 59], "no mixing": [40, 41, 42], "mean over queries": mean}
    outcome = variants.judge(rows("kind", **given), "kind", "a")
    assert f"Attention is worth {worth} points here (a minus mean over queries, the better control" in outcome.measured
    assert outcome.verdict == verdict


@pytest.mark.parametrize(
    ("gaussian", "softmax", "verdict"),
    [
        ([57, 58, 59], [60, 61, 62], "agrees"),
        ([59, 62, 61], [60, 61, 62], "not confirmed at this scale"),
        ([63, 64, 65], [50, 51, 52], "disagrees"),
        ([57, 58, 59], [70, 71, 72], "disagrees"),
    ],
)
def test_attention_is_to_beat_the_gaussian_and_not_to_lose_to_softmax(gaussian, softmax, verdict) -> None:
    """The Gaussian kernel in whichever of its two forms is the better one."""
    for better, worse in (("gaussian", "gaussian, plain"), ("gaussian, plain", "gaussian")):
        forms = {better: gaussian, worse: [45, 46, 47]}
        found = rows("attention", laplacian=[60, 61, 62], softmax=softmax, **forms)
        assert attention.judge(found).verdict == verdict


@pytest.mark.parametrize(
    ("forms", "matern", "verdict"),
    [
        (([60, 61, 62], [50, 51, 52]), [57, 58, 59], "agrees"),
        (([50, 51, 52], [60, 61, 62]), [57, 58, 59], "agrees"),
        (([60, 61, 62], [50, 51, 52]), [59, 62, 61], "agrees in part"),
        (([50, 51, 52], [60, 61, 62]), [70, 71, 72], "disagrees"),
    ],
)
def test_the_laplacian_kernel_counts_in_its_better_form(forms, matern, verdict) -> None:
    """The Gaussian and the Matern kernel are the others."""
    kernels = dict(zip(other_kernels.FORMS, forms, strict=True))
    found = rows("kernel", **kernels, **{"gaussian": [55, 56, 57], "matern, plain": matern})
    assert other_kernels.judge(found).verdict == verdict


@pytest.mark.parametrize(
    ("none", "full", "verdict"),
    [
        ([57, 58, 59], [60, 62, 61], "agrees"),
        ([59, 62, 61], [60, 62, 61], "not confirmed at this scale"),
        ([57, 58, 59], [63, 64, 65], "disagrees"),
    ],
)
def test_diagonal_whitening_is_to_beat_none_and_not_to_lose_to_the_full_one(none, full, verdict) -> None:
    found = rows("whitening", running=[60, 61, 62], none=none, full=full)
    assert whitening.judge(found).verdict == verdict


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "not confirmed at this scale"),
        ({name: [57, 58, 59] for name in defaults.CROSSED}, "agrees"),
        ({"crossed, 2 steps": [57, 58, 59]}, "agrees in part"),
        ({name: [57, 58, 59] for name in defaults.CROSSED} | {"2 steps": [63, 64, 65]}, "disagrees"),
    ],
)
def test_defaults_are_not_to_lose_and_to_beat_the_crossed_gram_matrix(changed, verdict) -> None:
    same = {name: [60, 62, 61] for name in defaults.CHOICES} | {"default": [60, 61, 62]}
    assert defaults.judge(rows("choice", **same | changed)).verdict == verdict


def curve(variant, *accuracies):
    return [
        {"variant": variant, "seed": str(seed), "epoch": str(epoch), "validation_accuracy": str(value / 100)}
        for seed, values in enumerate(accuracies)
        for epoch, value in enumerate(values)
    ]


def test_faster_convergence_is_told_from_a_better_end() -> None:
    """Ahead in the first epoch and equal in the last: faster."""
    slow, fast = [[20, 50], [22, 52], [24, 54]], [[30, 50], [32.5, 52], [33.5, 54]]
    points = [
        point
        for model in ("SOFT++", "Skyformer", "LaplacianFormer")
        for kernel, found in (("laplacian", fast), ("gaussian", slow))
        for point in curve(f"{model}, {kernel}", *found)
    ]
    ends = rows("variant", **{"LaplacianFormer, laplacian": [50, 52, 54]})
    starts = {"SOFT++, laplacian": Start(0.015, 0.005)}
    outcome = kernel_convergence.judge(ends, points, starts)
    assert "over the values: SOFT++, laplacian 0.015 and 0.5 %." in outcome.measured
    assert outcome.verdict == "agrees"
    assert "SOFT++ +5.00 ± 0.62 and +0.00 ± 0.00" in outcome.measured
    mirrored = [
        point | {"variant": point["variant"].replace("laplacian", "x").replace("gaussian", "laplacian")}
        for point in points
    ]
    mirrored = [point | {"variant": point["variant"].replace(", x", ", gaussian")} for point in mirrored]
    assert kernel_convergence.judge(ends, mirrored, starts).verdict == "disagrees"
    level = rows("variant", **{"LaplacianFormer, laplacian": [50, 52, 54], "no mixing": [50, 52, 54]})
    assert kernel_convergence.judge(level, points, starts).verdict == "attention does not matter here"


@pytest.mark.usefixtures("stand_in")
def test_the_quick_form_of_the_defaults_trains_a_few_choices(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = reproduce("defaults", output=None, quick=True).outcome
    assert outcome.verdict == "attention does not matter here"
    trained = read_rows(tmp_path / "runs" / "quick" / "trainings" / "runs.csv")
    assert len(trained) == len(defaults.QUICK) + len(trainings.CONTROLS)


@pytest.mark.slow
def test_the_quick_form_trains(tmp_path, monkeypatch) -> None:
    """Without a stand-in: the sweep starts a training and reads what it writes. Under two names, it is trained once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(other_kernels, "KERNELS", {"laplacian": trainings.DEFAULT})
    monkeypatch.setattr(variants, "CONTROLS", {"no mixing": trainings.DEFAULT})
    few = ("data.train_samples=64", "data.val_samples=24", "optimise.epochs=1", "encoder.depth=1")
    monkeypatch.setattr(trainings, "QUICK", (*trainings.QUICK, *few))
    cli.main(["reproduce", "other-kernels", "--quick"])
    (row,) = read_rows(tmp_path / "runs" / "quick" / "trainings" / "runs.csv")
    assert 0 < float(row["validation_accuracy"]) < 1
    assert float(row["validation_loss"]) > 0
