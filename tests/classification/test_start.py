"""Training from weights: what is taken over, what is replaced, what stays frozen, and what is refused before a step."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import timm
import torch
import yaml
from torch import Tensor

from laplacianformer import InputError, assets, load_weights, save_weights
from laplacianformer.classification import Recipe, load_recipe, train
from laplacianformer.classification._model import create_model
from laplacianformer.cli import main
from laplacianformer.sequences import SequenceEncoder, save_encoder
from laplacianformer.training import Loop
from laplacianformer.training import _checkpoint as checkpoint
from laplacianformer.training._optimiser import create_optimiser, create_schedule
from tests.helpers import INPUT, with_local_weights
from tests.training import helpers

CLASSES = ("class0", "class1", "class2")
SIXTEEN = {**INPUT, "size": [3, 16, 16]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With images of three classes in data/, and the weights of a small model that knows them."""
    folder = tmp_path_factory.mktemp("start")
    helpers.image_folder(folder / "data")
    torch.manual_seed(1)
    model = timm.create_model("laplacianformer_nano", num_classes=3, **helpers.MODEL, attention_args=helpers.ATTENTION)
    save_weights(folder / "start.safetensors", model, classes=CLASSES, metadata={"input": json.dumps(SIXTEEN)})
    return folder


def finetune(folder: Path, *overrides: str, weights: str = "start.safetensors") -> Recipe:
    small = [f"data.root={folder / 'data'}", "data.cache=true", "data.workers=0", "augment.scale=null"]
    small += ["optimise.epochs=2", "optimise.batch_size=6", "run.accelerator=cpu", "run.devices=1"]
    path = folder / weights
    return load_recipe("finetune", [f"model.weights={path if path.exists() else weights}", *small, *overrides])


def started(recipe: Recipe, classes: tuple[str, ...] = CLASSES) -> Any:
    return create_model(recipe, classes)[0].eval()


def test_a_recipe_takes_from_the_weights_what_it_does_not_state(folder: Path) -> None:
    recipe = finetune(folder, "data.crop_pct=0.5", "model.args.drop_path_rate=0.1")
    assert recipe.model.name == "laplacianformer_nano"
    assert recipe.model.args == {**helpers.MODEL, "attention_args": helpers.ATTENTION, "drop_path_rate": 0.1}
    data = recipe.data
    assert (data.size, data.mean, data.std, data.crop_pct) == (16, (0.5,) * 3, (0.25,) * 3, 0.5)
    shipped = finetune(folder, weights="laplacianformer_nano")
    assert shipped.model.args["attention_args"] == assets.model_arguments()["attention_args"]
    assert load_recipe("cifar10", [f"model.weights={assets.PATH}"]).data.size == 32


def test_the_head_is_kept_for_the_same_classes_and_new_for_others(folder: Path) -> None:
    before = load_weights(folder / "start.safetensors").model
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(started(finetune(folder))(images), before(images))
    for classes in (("a", "b", "c"), ("a", "b", "c", "d")):
        model = started(finetune(folder), classes)
        assert model(images).shape == (2, len(classes))
        assert torch.equal(model.forward_features(images), before.forward_features(images))
        assert not torch.equal(model.head.weight[:3], before.head.weight)


def test_frozen_stages_and_kept_statistics_are_those_of_the_weights_after_training(
    folder: Path, tmp_path: Path
) -> None:
    before = load_weights(folder / "start.safetensors").model.state_dict()

    def unchanged(name: str, *overrides: str) -> set[str]:
        result = train(finetune(folder, "optimise.ema_decay=0.5", *overrides), tmp_path / name)
        after = load_weights(result.weights).model.state_dict()
        return {key for key in before if torch.equal(after[key], before[key]) and not key.endswith("_extra_state")}

    buffers = {key for key in before if "running_var" in key or "num_batches" in key}
    frozen = unchanged("frozen", "model.frozen_stages=1")
    assert frozen == {key for key in before if key.startswith("stages.0.") and not key.endswith("_extra_state")}
    assert unchanged("kept", "model.frozen_statistics=true") == buffers
    assert not unchanged("all") & buffers


@pytest.mark.parametrize("optimiser", ["adamw", "muon32"])
def test_layers_learn_more_slowly_towards_the_input(folder: Path, optimiser: str) -> None:
    recipe = finetune(folder, "optimise.layer_decay=0.5", f"optimise.optimiser={optimiser}")
    model = started(recipe)
    made = create_optimiser(model, recipe.optimise)
    schedule = create_schedule(made, recipe.optimise, 10)
    schedule.step_update(5)  # the warm-up is over
    rates: dict[int, float] = {id(p): group["lr"] for group in made.param_groups for p in group["params"]}

    def rate(parameter: Tensor) -> float:
        return rates[id(parameter)] / recipe.optimise.lr

    embeddings, blocks = ([getattr(stage, part) for stage in model.stages] for part in ("embedding", "blocks"))
    found = [rate(model.head.weight), *(rate(block[0].mlp.fc1.weight) for block in reversed(blocks))]
    assert found[0] == pytest.approx(1, rel=0.05)
    assert found[1] / found[0] == pytest.approx(0.5)
    assert found[2] < found[1]
    assert rate(embeddings[0].proj.weight) < found[2]
    assert len(rates) == len(list(model.parameters()))


def test_images_may_have_another_size_than_the_weights_had(folder: Path, tmp_path: Path) -> None:
    result = train(finetune(folder, "data.size=24", "optimise.epochs=1", "optimise.warmup_epochs=0"), tmp_path / "ours")
    assert load_weights(result.weights).input["size"] == (3, 24, 24)

    arguments = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 1}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, **arguments)
    stated = {"input": json.dumps({**INPUT, "size": 32}), "model_args": json.dumps({**arguments, "num_classes": 3})}
    save_weights(tmp_path / "vit.safetensors", model, classes=CLASSES, metadata=stated)
    recipe = finetune(folder, "data.size=48", "optimise.epochs=1", "optimise.warmup_epochs=0",
                      weights=str(tmp_path / "vit.safetensors"))  # fmt: skip
    loaded = load_weights(train(recipe, tmp_path / "vit").weights)
    assert loaded.model.pos_embed.shape[1] == 1 + 3 * 3
    assert loaded.model(torch.randn(1, 3, 48, 48)).shape == (1, 3)
    with pytest.raises(InputError, match=r"for images of 32 x 32 pixels and can't take those of data.size=8"):
        started(finetune(folder, "data.size=8", weights=str(tmp_path / "vit.safetensors")))


NAME = "resnet10t.c3_in1k"


def test_weights_of_timm_by_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = with_local_weights(monkeypatch, NAME, tmp_path / "weights.pth")
    recipe = finetune(folder, weights=NAME)
    assert (recipe.model.name, recipe.data.size) == ("resnet10t", 176)
    found = started(recipe)
    assert torch.equal(found.layer4[0].conv1.weight, model.layer4[0].conv1.weight)
    assert found.num_classes == 3


def test_without_a_connection_weights_of_timm_are_refused_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=rf"can't get {NAME} with its weights from timm's hub: .*give a weights file"):
        train(finetune(folder, weights=NAME), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Stop(Exception):
    """Ends a run in the middle of an epoch."""


def test_a_stopped_run_ends_with_the_same_bits_and_says_that_it_needs_its_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "start.safetensors"
    weights.write_bytes((folder / "start.safetensors").read_bytes())
    options = (
        "model.frozen_stages=1",
        "optimise.ema_decay=0.9",
        "run.checkpoint_steps=3",
        "model.args.drop_path_rate=0.2",
    )
    recipe = finetune(folder, *options, weights=str(weights))
    whole = train(recipe, tmp_path / "whole")
    advance = Loop.advance

    def stopping(loop: Loop, batch: Any) -> None:
        if loop.step == 5:
            raise Stop
        advance(loop, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "advance", stopping)
        with pytest.raises(Stop):
            train(recipe, tmp_path / "stopped")
    assert checkpoint.load(tmp_path / "stopped")["step"] == 4
    weights.rename(tmp_path / "moved.safetensors")
    with pytest.raises(InputError, match=r"start\.safetensors is not there: expected a weights file"):
        train(recipe, tmp_path / "stopped", resume=True)
    (tmp_path / "moved.safetensors").rename(weights)
    again = train(recipe, tmp_path / "stopped", resume=True)
    expected, found = helpers.weights(whole.folder), helpers.weights(again.folder)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert helpers.rows(again.folder) == helpers.rows(whole.folder)


def test_a_checkpoint_from_before_there_were_these_keys_is_resumed(tmp_path: Path) -> None:
    recipe = helpers.tiny(tmp_path, optimise={"epochs": 2})
    train(recipe, tmp_path / "run")
    state = checkpoint.load(tmp_path / "run")
    tree = yaml.safe_load(state["recipe"])
    for section, key in (("model", "weights"), ("model", "frozen_stages"), ("optimise", "layer_decay")):
        del tree[section][key]
    checkpoint.save(tmp_path / "run", {**state, "recipe": yaml.safe_dump(tree)})
    train(recipe, tmp_path / "run", resume=True)
    with pytest.raises(InputError, match=r"started with another model\.frozen_stages"):
        train(helpers.tiny(tmp_path, optimise={"epochs": 2}, model={"frozen_stages": 1}), tmp_path / "run", resume=True)


def test_the_weights_file_names_its_origin_without_folders(folder: Path, tmp_path: Path) -> None:
    result = train(finetune(folder, "optimise.epochs=1", "optimise.warmup_epochs=0"), tmp_path / "run")
    said = load_weights(result.weights).metadata
    assert yaml.safe_load(said["recipe"])["model"]["weights"] == "start.safetensors"
    assert str(folder) not in "".join(said.values())


WRONG = {
    "no weights": ([], "has no model: give --weights FILE to start from, or model.name=NAME"),
    "missing": (["--weights", "none.safetensors"], "none.safetensors is not there: expected a weights file"),
    "unknown": (["--weights", "magic"], "there is no file magic, and timm has no model of this name"),
    "not trained": (["--weights", "laplacianformer_tiny"], "timm has no weights for a model of this name"),
    "architecture": (
        ["--weights", "{start}", "model.name=laplacianformer_tiny"],
        "holds a laplacianformer_nano: expected a laplacianformer_tiny, the model.name of the recipe",
    ),
    "tensors": (["--weights", "{start}", "model.args.depths=[2, 1]"], "is missing"),
    "settings": (
        ["--weights", "{start}", "model.args.attention_args={{grid: 3, gain: 9.0}}"],
        "instead of 9.0",
    ),
    "argument": (["--weights", "{start}", "model.args.magic=1"], "can't be built with model.args="),
    "twice": (["--weights", "{start}", "model.args.pretrained=true"], "leave them out with model.weights"),
    "stages": (["--weights", "{start}", "model.frozen_stages=3"], "frozen_stages=3: laplacianformer_nano has 2 stages"),
    "task": (["--weights", "{encoder}"], "holds a sequence encoder: expected a classifier"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_weights_end_with_one_line_before_anything_is_written(
    what: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = WRONG[what]
    encoder = tmp_path / "encoder.safetensors"
    model = SequenceEncoder(257, 30, 2, landmarks=4, dim=16)
    save_encoder(encoder, model, sequence="text", classes=("neg", "pos"))
    given = [argument.format(start=folder / "start.safetensors", encoder=encoder) for argument in arguments]
    small = ["data.cache=true", "augment.scale=null", "optimise.batch_size=6"]
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "train",
                "--recipe",
                "finetune",
                "--data",
                str(folder / "data"),
                "--output",
                str(tmp_path / "run"),
                *small,
                *given,
            ]
        )
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()
