"""Recipes: those of the package are whole, and what is wrong with another is said in one line."""

import dataclasses
from pathlib import Path

import pytest
import timm
import yaml
from timm.utils import ModelEmaV3
from torch import nn

from laplacianformer import recipes
from laplacianformer._util.errors import InputError
from laplacianformer.training.checkpoint import differences

SIZES = ("tiny", "small", "medium", "large", "huge")
IMAGENET = [f"imagenet-{size}" for size in SIZES]
COCO = [f"coco-{detector}-{size}" for detector in ("maskrcnn", "retinanet") for size in SIZES]
SMALL_DETECTION = ["shapes-maskrcnn", "pennfudan-maskrcnn", "pennfudan-retinanet"]
DETECTION = [*COCO, *SMALL_DETECTION]


def test_every_promised_recipe_is_there() -> None:
    assert set(recipes.names()) == {"digits", "cifar10", "ablation", "fashion-mnist", *IMAGENET, *DETECTION}


@pytest.mark.parametrize("name", ["digits", "cifar10", "ablation", "fashion-mnist", *IMAGENET, *DETECTION])
def test_every_recipe_loads_and_its_head_states_result_launch_and_time(name: str) -> None:
    recipe = recipes.load(name)
    assert timm.is_model(recipe.model.name if isinstance(recipe, recipes.Recipe) else recipe.detector.backbone)
    text = (Path(recipes.__file__).parent / f"{name}.yaml").read_text()
    head = [line for line in text.splitlines() if line.startswith("#")]
    for word in ("# Expected: ", "# Launch: ", "# Hardware and time: "):
        assert any(line.startswith(word) for line in head), word


@pytest.mark.parametrize("name", IMAGENET)
def test_the_imagenet_recipes_are_those_of_the_pvt_and_deit_line(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.model.name == f"laplacianformer_{name.removeprefix('imagenet-')}"
    optimise, augment = recipe.optimise, recipe.augment
    assert (optimise.epochs, optimise.batch_size, optimise.lr, optimise.lr_batch) == (300, 1024, 1e-3, 1024)
    assert (optimise.optimiser, optimise.weight_decay, augment.label_smoothing) == ("adamw", 0.05, 0.1)
    assert (augment.mixup, augment.cutmix, augment.erase) == (0.8, 1.0, 0.25)
    assert augment.rand_augment == "rand-m9-mstd0.5-inc1"
    assert recipe.run.precision == "bfloat16"
    assert None not in (optimise.clip_norm, optimise.ema_decay or None)


@pytest.mark.parametrize("name", COCO)
def test_the_coco_recipes_are_the_1x_schedule(name: str) -> None:
    recipe = recipes.load(name)
    assert isinstance(recipe, recipes.DetectionRecipe)
    assert recipe.detector.name.replace("_", "") == name.split("-")[1]
    assert recipe.detector.backbone == f"laplacianformer_{name.split('-')[2]}"
    optimise, data = recipe.optimise, recipe.data
    assert (optimise.epochs, optimise.lr_steps, optimise.batch_size) == (12, (8, 11), 16)
    assert (optimise.optimiser, optimise.lr, optimise.weight_decay) == ("adamw", 1e-4, 0.05)
    assert (data.short_side, data.long_side, recipe.augment.flip) == ((800,), 1333, 0.5)


def test_bigger_imagenet_models_have_no_less_stochastic_depth() -> None:
    rates = [recipes.load(name).model.args["drop_path_rate"] for name in IMAGENET]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


@pytest.mark.parametrize(
    ("name", "images"),
    [("digits", 1437), ("cifar10", 50000), ("fashion-mnist", 60000), *((name, 1281167) for name in IMAGENET)],
)
def test_the_decay_that_a_recipe_reaches_is_the_documented_one(name: str, images: int) -> None:
    optimise = recipes.load(name).optimise
    steps = images // optimise.batch_size * optimise.epochs
    average = ModelEmaV3(nn.Linear(1, 1), optimise.ema_decay, use_warmup=True)
    row = f"| {'imagenet-*' if name in IMAGENET else name} | {optimise.ema_decay} | {steps:,} | "
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    assert f"{row}{average.get_decay(steps):.4f} |" in text


def test_overrides_are_put_over_the_recipe_and_typed() -> None:
    recipe = recipes.load("cifar10", ["optimise.lr=1e-3", "data.cache=yes", "model.args.attention=softmax"])
    assert recipe.optimise.lr == 1e-3
    assert recipe.model.args == {"attention_args": {"grid": 4, "gain": 4.0}, "attention": "softmax"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.optimise.lr = 2.0  # type: ignore[misc]


def test_a_recipe_survives_being_written_and_read(tmp_path: Path) -> None:
    recipe = recipes.load("imagenet-tiny", ["augment.scale=[0.2, 1.0]"])
    (tmp_path / "copy.yaml").write_text(recipes.as_yaml(recipe))
    assert recipes.load(str(tmp_path / "copy.yaml")) == recipe


WRONG = {
    "optimise.learning_rate=1": r"unknown key optimise\.learning_rate",
    "optimise.epoch=1": r"unknown key optimise\.epoch, did you mean 'epochs'\?; known: epochs, batch_size",
    "augmnt.mixup=1": r"unknown key augmnt, did you mean 'augment'\?",
    "optimise.epochs=many": r"optimise\.epochs: .*integer.*, got 'many'",
    "optimise.epochs=0": r"optimise\.epochs: .*greater than or equal to 1, got 0",
    "optimise.lr=.nan": r"optimise\.lr: .*finite",
    "run.precision=float16": r"run\.precision: .*'float32' or 'bfloat16', got 'float16'",
    "augment.rand_augment=rand-m9": r"augment\.rand_augment needs data\.cache: false",
    "optimise.warmup_epochs=30": r"warmup_epochs must be less than",
    "epochs=3": r"expected section\.key=value",
    "optimise.epochs": r"expected section\.key=value",
    "optimise.lr.x=3": r"lr has no keys",
    "optimise.lr=[": r"optimise\.lr is not YAML",
}


@pytest.mark.parametrize("override", WRONG)
def test_what_is_wrong_is_said_in_one_line(override: str) -> None:
    with pytest.raises(InputError, match=WRONG[override]) as error:
        recipes.load("cifar10", [override])
    assert "\n" not in str(error.value)


WRONG_DETECTION = {
    "detector.name=yolo": r"detector\.name: .*'mask_rcnn' or 'retinanet', got 'yolo'",
    "data.short_sides=[1]": r"unknown key data\.short_sides, did you mean 'short_side'\?",
    "data.short_side=[2000]": r"data\.short_side must not be more than data\.long_side",
    "optimise.lr_steps=[11, 8]": r"optimise\.lr_steps must grow",
    "optimise.layer_decay=2": r"optimise\.layer_decay: .*less than or equal to 1, got 2",
    "augment.mixup=1": r"unknown key augment\.mixup",
}


@pytest.mark.parametrize("override", WRONG_DETECTION)
def test_what_is_wrong_with_a_detection_recipe_is_said_in_one_line(override: str) -> None:
    with pytest.raises(InputError, match=WRONG_DETECTION[override]) as error:
        recipes.load("coco-maskrcnn-tiny", [override])
    assert "\n" not in str(error.value)


def test_a_detection_recipe_survives_being_written_and_read(tmp_path: Path) -> None:
    recipe = recipes.load("coco-retinanet-tiny", ["data.short_side=[480, 800]"])
    (tmp_path / "copy.yaml").write_text(recipes.as_yaml(recipe))
    assert recipes.load(str(tmp_path / "copy.yaml")) == recipe


def test_unknown_recipes_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no recipe 'cifar', did you mean 'cifar10'\?"):
        recipes.load("cifar")
    with pytest.raises(InputError, match="can't read the recipe"):
        recipes.load(str(tmp_path / "none.yaml"))
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(InputError, match="expected sections"):
        recipes.load(str(tmp_path / "list.yaml"))
    (tmp_path / "half.yaml").write_text(yaml.safe_dump({"model": {"name": "laplacianformer_nano"}, "data": {}}))
    with pytest.raises(InputError, match="optimise is missing"):
        recipes.load(str(tmp_path / "half.yaml"))


def test_differences_are_dotted_keys() -> None:
    assert differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}) == ["a.c", "d", "e"]
