"""The errors where numbers stop being finite, or a CPU can't do what it announces."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import laplacianformer  # noqa: F401  (registers the models)
from laplacianformer import detection, sequences
from laplacianformer._util.errors import InputError
from laplacianformer.classification import _task as classification
from laplacianformer.inspect._finite import first_not_finite
from laplacianformer.training import Loop
from laplacianformer.training import _checkpoint as checkpoint
from laplacianformer.training import _finite as trouble
from laplacianformer.training._session import Session, create_engine
from tests.detection import helpers as detection_helpers
from tests.sequences import helpers as sequence_helpers

from . import helpers


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("laplacianformer_nano", num_classes=3, **helpers.MODEL)


def test_the_first_layer_that_is_not_finite_is_named() -> None:
    sick, images = model(), torch.randn(2, 3, 16, 16)
    assert first_not_finite(sick, images) == "every layer's output is finite"
    with torch.no_grad():
        sick.stages[1].blocks[0].mlp.fc1.bias.fill_(1e30)
        sick.stages[1].blocks[0].mlp.fc2.weight.fill_(1e30)
    assert first_not_finite(sick, images).endswith("is stages.1.blocks.0.mlp.fc2")
    assert not sick._forward_hooks
    images[0, 0, 0, 0] = torch.nan
    assert first_not_finite(sick, images) == "the images themselves are not finite"
    with torch.no_grad():
        sick.stages[0].blocks[0].norm1.weight[3] = torch.inf
    assert "weights stages.0.blocks.0.norm1.weight are already not finite" in first_not_finite(sick, images)


def test_the_first_gradient_that_is_not_finite_is_named() -> None:
    sick = model()
    sick(torch.randn(2, 3, 16, 16)).sum().backward()
    assert "norm is not" in trouble.gradients_not_finite(sick)
    sick.norm.bias.grad[0] = torch.nan
    assert "the gradient of norm.bias is not" in trouble.gradients_not_finite(sick)


def test_a_run_whose_loss_is_not_finite_stops_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    recipe = helpers.tiny(tmp_path, optimise={"lr": 1e37, "optimiser": "sgd", "clip_norm": None, "weight_decay": 0})
    with pytest.raises(InputError, match=r"(loss|gradient) is not finite at step \d+: .*(stages|head|norm)") as error:
        classification.train(recipe, tmp_path / "run")
    assert "\n" not in str(error.value)
    if checkpoint.exists(tmp_path / "run"):
        state = checkpoint.load(tmp_path / "run")
        assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_a_run_names_the_gradient_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with clipping, which makes every gradient NaN."""

    def sick(*arguments: Any) -> tuple[Any, dict[str, Any]]:
        model, args = create(*arguments)
        model.head.weight.register_hook(lambda gradient: gradient * torch.nan)
        return model, args

    create = classification.create_model
    monkeypatch.setattr(classification, "create_model", sick)
    with pytest.raises(InputError, match=r"gradient of head\.weight is not"):
        classification.train(helpers.tiny(tmp_path, optimise={"clip_norm": 1.0}), tmp_path / "run")


def test_weights_that_could_not_be_written_are_refused_before_training(tmp_path: Path) -> None:
    recipe = helpers.tiny(tmp_path)
    loaders = dataclasses.replace(classification.open_loaders(recipe), classes=("same", "same", "other"))
    session = Session(create_engine(recipe.run), tmp_path / "run")
    with pytest.raises(InputError, match="2 distinct class names for a model with 3 outputs"):
        classification.ClassificationTask(recipe, loaders, session)
    assert not (tmp_path / "run").exists()


def test_mixup_of_an_odd_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mixup needs an even batch size per process: optimise.batch_size=5 gives 5"):
        classification.train(helpers.tiny(tmp_path, optimise={"batch_size": 5}), tmp_path / "run")


def test_an_unknown_augmentation_is_one_line(tmp_path: Path) -> None:
    recipe = helpers.tiny(tmp_path, data={"cache": False}, augment={"crop_padding": 0, "rand_augment": "rubbish"})
    with pytest.raises(InputError, match=r"augment.rand_augment=rubbish can't be used"):
        classification.train(recipe, tmp_path / "run")


@pytest.mark.slow
def test_bfloat16_runs_where_it_can(tmp_path: Path) -> None:
    recipe = helpers.tiny(tmp_path, optimise={"epochs": 2}, run={"precision": "bfloat16"})
    result = classification.train(recipe, tmp_path / "run")
    assert result.steps == 8
    found = {tensor.dtype for tensor in helpers.weights(tmp_path / "run").values()}
    assert found == {torch.float32, torch.int64, torch.uint8}  # weights, numbers of batches, settings


@pytest.mark.parametrize("task", ["classification", "detection", "sequences"])
def test_an_evaluation_whose_outputs_are_not_finite_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """In evaluation alone: the running variance is not used in training."""

    def evaluate(loop: Loop, evaluate=Loop.evaluate) -> dict[str, float]:
        for name, buffer in loop.learner.evaluated.named_buffers():
            if name.endswith("running_var"):
                buffer.fill_(torch.nan)
        return evaluate(loop)

    monkeypatch.setattr(Loop, "evaluate", evaluate)
    recipe: Any
    if task == "detection":
        recipe = detection_helpers.recipe(tmp_path / "recipe.yaml", "retinanet", optimise={"epochs": 1})
    else:
        recipe = helpers.tiny(tmp_path) if task == "classification" else sequence_helpers.tiny(tmp_path)
    train: Any = {"classification": classification, "detection": detection, "sequences": sequences}[task].train
    with pytest.raises(InputError, match=r"not finite: the first layer .* is .*(blocks|layers)\.0\.attention") as error:
        train(recipe, tmp_path / "run")
    assert "\n" not in str(error.value)
