"""What a conversion is given: a model that its file could not describe, images in a tensor, overrides; what does not
fit is refused in one line, and the file says what was done."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch

from laplacianformer import InputError, load_weights
from laplacianformer.convert import convert, load_recipe, train
from laplacianformer.convert._convert import _adapted, _loaders
from laplacianformer.convert._teacher import stated_input
from laplacianformer.training._recipes import parse_yaml
from tests.convert.helpers import QUICK, SIDE, Stop, Stopping, arguments, images, save_teacher, teacher
from tests.training import helpers

FAST = (*QUICK, "match.epochs=1", "distil.epochs=1")


def converted(model: Any = None, given: Any = None, family: str = "vit", **options: Any) -> Any:
    model = teacher(family) if model is None else model
    overrides = [*FAST, *options.pop("overrides", ())]
    options = {"model_args": arguments(family), **options}
    return convert(model, images(20) if given is None else given, overrides=overrides, **options)


def refused(tmp_path: Path, reason: str, *given: Any, **options: Any) -> None:
    with pytest.raises(InputError, match=reason):
        converted(*given, output=tmp_path / "run", **options)
    assert not list(tmp_path.rglob("metrics.csv"))


@pytest.mark.parametrize(
    ("family", "built"),
    [
        ("vit", {"act_layer": "relu"}),
        ("vit", {"global_pool": "avg", "fc_norm": False}),
        ("registers", {"global_pool": "avg", "fc_norm": False, "num_classes": 0}),
        ("vit", {"act_layer": "gelu_tanh"}),
    ],
)
def test_a_model_that_its_arguments_would_build_otherwise_is_refused(
    tmp_path: Path, family: str, built: dict[str, Any]
) -> None:
    """Its tensors are the same, and what it computes is not."""
    model = teacher(family, **built)
    refused(tmp_path, "give model_args", model, family=family)
    kept = {key: value for key, value in built.items() if key != "num_classes"}
    result = converted(model, family=family, model_args={**arguments(family), **kept}, output=tmp_path / "run")
    assert torch.equal(load_weights(result.weights).model(images()), result.model(images()))


@pytest.mark.parametrize("said", ["teacher.classes=classes.json", "teacher.weights=w.pth", "teacher.args={depth: 2}"])
def test_overrides_of_the_teacher_are_refused(tmp_path: Path, said: str) -> None:
    refused(tmp_path, "teacher is the model that is given.*classes=", overrides=[said])


def test_the_outputs_get_the_names_that_are_given(tmp_path: Path) -> None:
    result = converted(classes=list("vwxyz"), output=tmp_path / "run")
    assert load_weights(result.weights).classes == tuple("vwxyz")
    for wrong in ("ab", "aabcd", [1, 2, 3, 4, 5]):
        refused(tmp_path / "other", "5 outputs", classes=wrong)


@pytest.mark.parametrize(
    "said",
    ["augment.flip=0.5", "augment.scale=[0.5, 1.0]", "data.root=images", "data.train_split=test", "data.size=48"],
)
def test_what_says_nothing_about_a_tensor_is_refused(tmp_path: Path, said: str) -> None:
    refused(tmp_path, f"{said.partition('=')[0]} .*tensor", overrides=[said])


def test_counts_of_images_hold_for_a_tensor_too(tmp_path: Path) -> None:
    counts = ["convert.match_samples=12", "data.train_samples=18", "data.val_samples=2"]
    result = converted(given=images(40), overrides=counts, output=tmp_path / "run")
    recipe = parse_yaml(load_weights(result.weights).metadata["recipe"], "recipe")
    assert recipe["augment"]["flip"] == 0
    assert recipe["augment"]["scale"] is None
    assert recipe["data"]["reader"] == "tensor"
    assert result.steps == 12 // 6 + 18 // 6
    assert round(2 * result.agreement, 6) in (0, 1, 2), "of two held-out images"


class _Session:
    fabric = SimpleNamespace(global_rank=0, world_size=1)


def test_images_of_a_tensor_are_taken_evenly_and_repeated() -> None:

    numbered = torch.arange(40.0)[:, None, None, None].expand(40, 3, SIDE, SIDE)
    more = ["data.train_samples=12", "data.val_samples=2", "data.repeats=2", "convert.match_samples=null"]
    recipe = _adapted(load_recipe("convert-vit", [*FAST, *more]), numbered)
    loaders = _loaders(numbered, recipe, "distil", _Session)
    found = torch.cat([batch.images[:, 0, 0, 0] for batch in loaders.train.epoch(0)])
    assert len(found) == 12
    assert len(found.unique()) == 6
    assert found.max() - found.min() > 20
    assert [batch.images[:, 0, 0, 0].tolist() for batch in loaders.val] == [[0.0, 20.0]]
    assert loaders.images == {"training": 12, "held-out": 2}


@pytest.mark.parametrize(
    ("family", "built", "given", "reason"),
    [
        ("vit", {"dynamic_img_size": True}, images(20, 36), "can't take images of 3 x 36 x 36.*divisible"),
        ("pvt", {}, images(20, 4), "can't take images of 3 x 4 x 4"),
        ("vit", {}, images(20)[:, :1], r"images \(N, 3, side, side\)"),
    ],
)
def test_images_that_the_teacher_can_not_take_are_refused(
    tmp_path: Path, family: str, built: dict[str, Any], given: torch.Tensor, reason: str
) -> None:
    args = {**arguments(family), **built}
    refused(tmp_path, reason, teacher(family, **built), given, family=family, model_args=args)


def test_a_tag_that_timm_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match=r"no weights .*deit_tiny_patch16_224\.nonsense.*fb_in1k"):
        stated_input("deit_tiny_patch16_224.nonsense")


@pytest.mark.parametrize("layers", [[-1], []])
def test_layers_that_are_none_are_refused(tmp_path: Path, layers: list[int]) -> None:
    refused(tmp_path, r"convert\.layers must be numbers from 0", layers=layers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_teacher_of_another_precision_is_converted_in_float32(dtype: torch.dtype) -> None:
    result = converted(teacher().to(dtype), images(20).to(dtype))
    assert {part.dtype for part in result.model.parameters()} == {torch.float32}


def test_a_teacher_without_classes_needs_the_loss_of_features(tmp_path: Path) -> None:
    model = teacher("registers", num_classes=0)
    refused(tmp_path, "no classes.*convert.features", model, family="registers", overrides=["convert.features=0"])


def test_without_classes_there_is_no_agreement_of_classes(tmp_path: Path) -> None:
    converted(teacher("registers", num_classes=0), family="registers", output=tmp_path / "run")
    assert "train_agreement" not in helpers.rows(tmp_path / "run" / "distil")[0]
    converted(output=tmp_path / "other")
    assert "train_agreement" in helpers.rows(tmp_path / "other" / "distil")[0]


def test_a_run_is_not_continued_with_other_images(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        converted(output=tmp_path / "run", report=Stopping("distil", 1), overrides=["run.checkpoint_steps=1"])
    with pytest.raises(InputError, match="started with other images"):
        converted(given=images(20).flip(0), output=tmp_path / "run", resume=True, overrides=["run.checkpoint_steps=1"])
    converted(output=tmp_path / "run", resume=True, overrides=["run.checkpoint_steps=1"])


def test_the_learning_rate_in_the_metrics_is_that_of_the_recipe(tmp_path: Path) -> None:
    """Gains learn ten times as fast, and that is not what the column says."""
    for learn in ("all", "scales"):
        converted(output=tmp_path / learn, overrides=[f"convert.learn={learn}"])
        assert max(float(row["lr"]) for row in helpers.rows(tmp_path / learn / "match")) <= 2e-3


@pytest.mark.parametrize("name", ["cait_xxs24_224", "crossvit_tiny_240"])
def test_attention_across_tokens_of_another_kind_is_refused(name: str) -> None:
    model = timm.create_model(name)
    with pytest.raises(InputError, match=r"no softmax attention|can't be converted"):
        convert(model, images(20))


def test_few_images_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, r"match\.batch_size=6 is more than the 5 training images", given=images(6))


def test_a_mask_of_tokens_is_refused() -> None:
    model = converted().model
    with pytest.raises(ValueError, match="takes no attention mask"):
        model.forward_features(images(), attn_mask=torch.ones(17, 17, dtype=torch.bool))


def test_a_teacher_that_knows_none_of_the_labels_is_warned_about(tmp_path: Path) -> None:
    """Near chance on at least a hundred images: the names of its outputs are in another order, perhaps."""
    save_teacher(tmp_path / "teacher.safetensors", teacher())
    for index in range(5):
        folder = helpers.image_folder(tmp_path / f"part{index}", classes=1, train=6, val=30, size=SIDE)
        for split in ("train", "val"):
            (tmp_path / "data" / split).mkdir(parents=True, exist_ok=True)
            (folder / split / "class0").rename(tmp_path / "data" / split / "abcde"[index])

    said = [f"teacher.name={tmp_path / 'teacher.safetensors'}", f"data.root={tmp_path / 'data'}", f"data.size={SIDE}"]
    with pytest.warns(UserWarning, match=r"20\.00% of 150 labelled.*--classes"):
        train(load_recipe("convert-vit", [*said, *FAST]), tmp_path / "run")
