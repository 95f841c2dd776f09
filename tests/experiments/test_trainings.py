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
from laplacianformer.experiments.branches import branch_of
from laplacianformer.experiments.frame import Settings, reproduce
from laplacianformer.experiments.rows import read_rows
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


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_the_default_run_and_no_training_twice(name) -> None:
    every = list(SWEEPS[name].values())
    assert trainings.DEFAULT in every
    assert len(set(every)) == len(every)


def encoder(overrides):
    return create_encoder(load_sequences(trainings.PROBE, ("encoder.depth=1", *overrides)), ("a", "b", "c"))


def small_classifier(overrides):
    """The arguments of the attention do not depend on the size."""
    small = {"depths": [1], "embed_dims": [32], "num_heads": [1], "mlp_ratios": [1]}
    args = load_recipe("imagenet", overrides).model.args
    return timm.create_model("laplacianformer_nano", num_classes=3, **args | small)


@pytest.mark.parametrize(
    ("recipe", "build", "inputs"),
    [
        (trainings.PROBE, encoder, torch.arange(512).reshape(2, 256) * 7 % 9),
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


def test_a_training_is_found_again_under_the_name_that_it_had() -> None:
    """The names in the table of trainings follow from recipe, overrides and seed."""
    choices = {"a": trainings.DEFAULT, "b": trainings.with_arguments(kernel="gaussian")}
    runs = trainings.runs_of(full(cifar10="anywhere"), choices, "kind", seeds=1)
    assert [run.key for run in runs] == ["4fedfc2408", "677ac339fc"]


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
    monkeypatch.setattr(kernel_convergence, "branch_of", lambda run, weights=None: branch_of(run))  # there are none
    cli.main(["reproduce", name, "--cifar10", "somewhere"])
    folder = tmp_path / "results" / "experiments" / name
    written = json.loads((folder / "verdict.json").read_text())
    assert written["verdict"] == "attention does not matter here"  # the stand-in's accuracy is that of the seed
    assert "Attention is worth +0.00 ± 0.00 points here" in written["measured"]
    assert "does not matter" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"verdict.json", f"{name}.png"}  # no copies of rows
    arms = len(SWEEPS[name]) + len(trainings.CONTROLS)
    if name == "attention":  # which says beside them what attention is worth in a classifier
        arms += len(attention.CLASSIFIED) + len(trainings.CONTROLS)
    assert len(read_rows(tmp_path / "results" / "experiments" / "trainings" / "runs.csv")) == trainings.SEEDS * arms
    with Image.open(folder / f"{name}.png") as picture:
        assert min(picture.size) > 400


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
