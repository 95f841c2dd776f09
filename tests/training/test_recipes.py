"""Recipes: those of the package are complete, and mistakes in others are reported in one line."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import yaml
from timm.utils import ModelEmaV3
from torch import nn

import laplacianformer
from laplacianformer._util.errors import InputError
from laplacianformer.classification import Recipe
from laplacianformer.classification import load_recipe as load_classification
from laplacianformer.classification._recipe import size_overrides as classification_size
from laplacianformer.cli import main
from laplacianformer.convert import ConvertRecipe
from laplacianformer.detection import DetectionRecipe
from laplacianformer.detection import load_recipe as load_detection
from laplacianformer.detection._recipe import size_overrides as detection_size
from laplacianformer.segmentation import SegmentationRecipe
from laplacianformer.sequences import SequenceEncoder, SequenceRecipe
from laplacianformer.sequences import load_recipe as load_sequences
from laplacianformer.training import _recipes as recipes
from laplacianformer.training._checkpoint import differences

SIZES = ("tiny", "small", "medium", "large", "huge")
DETECTORS = ["mask_rcnn", "retinanet"]
OLD_COCO = {"coco-maskrcnn": ["detector.name=mask_rcnn"], "coco-retinanet": ["detector.name=retinanet"]}
CLASSIFICATION = ["digits", "cifar10", "cifar100", "ablation", "probe", "fashion-mnist", "imagenet", "finetune"]
DETECTION = ["coco", "shapes-maskrcnn", "pennfudan-maskrcnn", "pennfudan-retinanet"]
SEGMENTATION = ["shapes-segmentation", "camvid", "ade20k-fpn", "cityscapes-upernet"]
SEQUENCES = ["lra-listops", "lra-pathfinder", "lra-image", "lra-text", "lra-retrieval", "probe-inpaint", "probe-recall"]
CONVERSION = ["convert-vit", "convert-pvt"]
FAMILIES = {"imagenet": classification_size, "coco": detection_size}
KINDS: dict[str, Any] = {
    "model": Recipe,
    "detector": DetectionRecipe,
    "segmenter": SegmentationRecipe,
    "encoder": SequenceRecipe,
    "teacher": ConvertRecipe,
}
# Stochastic depth, and what the paper reports: top-1; box AP and mask AP of Mask R-CNN; box AP of RetinaNet.
DROP_PATH = {"tiny": 0.1, "small": 0.1, "medium": 0.2, "large": 0.3, "huge": 0.4}
REPORTED = {
    "imagenet": {"tiny": "81.4", "small": "83.8", "medium": "85.3", "large": "85.6", "huge": "85.8"},
    "coco": {
        "tiny": "43.2  40.3  42.5",
        "small": "45.8  42.0  45.5",
        "medium": "48.0  43.5  47.2",
        "large": "48.2  43.8  48.5",
    },
}


def text_of(name: str) -> str:
    return (Path(laplacianformer.__file__).parent / "recipes" / f"{name}.yaml").read_text()


def head_of(name: str) -> list[str]:
    return [line for line in text_of(name).splitlines() if line.startswith("#")]


def sized(family: str, size: str) -> Any:
    return recipes.load(family, KINDS, FAMILIES[family](size))


def test_every_promised_recipe_is_there() -> None:
    assert set(recipes.names()) == {*CLASSIFICATION, *DETECTION, *SEGMENTATION, *SEQUENCES, *CONVERSION}


@pytest.mark.parametrize("name", [*CLASSIFICATION, *DETECTION, *SEGMENTATION, *SEQUENCES, *CONVERSION])
def test_every_recipe_loads_and_its_head_states_result_launch_and_time(name: str) -> None:
    recipe = recipes.load(name, KINDS, ["model.weights=laplacianformer_nano"] if name == "finetune" else [])
    if name in SEQUENCES:
        assert isinstance(recipe, SequenceRecipe)
    elif name in SEGMENTATION:
        assert isinstance(recipe, SegmentationRecipe)
        assert timm.is_model(recipe.segmenter.backbone)
    elif name in CONVERSION:
        assert isinstance(recipe, ConvertRecipe)
        assert timm.is_model(recipe.teacher.name)
    else:
        assert isinstance(recipe, Recipe if name in CLASSIFICATION else DetectionRecipe)
        assert timm.is_model(recipe.model.name if isinstance(recipe, Recipe) else recipe.detector.backbone)
    for word in ("# Expected: ", "# Launch: ", "# Hardware and time: "):
        assert any(line.startswith(word) for line in head_of(name)), word


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_of_a_family_lists_the_overrides_and_the_reported_result_of_each_size(family: str, size: str) -> None:
    """And they are those that `size_overrides` returns; as it is, a recipe is for the size tiny."""
    (line,) = [line for line in head_of(family) if line.startswith(f"#   {size} ")]
    stated = [word for word in line.split() if "=" in word]
    assert recipes.load(family, KINDS, stated) == sized(family, size)
    assert bool(stated) == (size != "tiny")
    numbers = re.sub(r" +\S+=.*", "", line).removeprefix(f"#   {size}").strip()
    assert numbers == REPORTED[family].get(size, numbers)
    assert any(character.isdecimal() for character in numbers) == (size in REPORTED[family])


@pytest.mark.parametrize("size", SIZES)
def test_the_imagenet_recipe_is_that_of_the_pvt_and_deit_line(size: str) -> None:
    recipe = sized("imagenet", size)
    assert (recipe.model.name, recipe.model.args) == (f"laplacianformer_{size}", {"drop_path_rate": DROP_PATH[size]})
    optimise, augment = recipe.optimise, recipe.augment
    assert (optimise.epochs, optimise.batch_size, optimise.lr, optimise.lr_batch) == (300, 1024, 1e-3, 1024)
    assert (optimise.optimiser, optimise.weight_decay, augment.label_smoothing) == ("adamw", 0.05, 0.1)
    assert (augment.mixup, augment.cutmix, augment.erase) == (0.8, 1.0, 0.25)
    assert augment.rand_augment == "rand-m9-mstd0.5-inc1"
    assert recipe.run.precision == "bfloat16"
    assert None not in (optimise.clip_norm, optimise.ema_decay or None)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", DETECTORS)
def test_the_coco_recipe_is_the_1x_schedule(name: str, size: str) -> None:
    recipe = load_detection("coco", [f"detector.name={name}", *detection_size(size)])
    assert recipe.detector.name == name
    assert recipe.detector.backbone == f"laplacianformer_{size}"
    assert recipe.detector.backbone_args == {"drop_path_rate": DROP_PATH[size]}
    optimise, data = recipe.optimise, recipe.data
    assert (optimise.epochs, optimise.lr_steps, optimise.batch_size) == (12, (8, 11), 16)
    assert (optimise.optimiser, optimise.lr, optimise.weight_decay) == ("adamw", 1e-4, 0.05)
    assert (data.short_side, data.long_side, recipe.augment.flip) == ((800,), 1333, 0.5)


# Training sequences; and as published: tokens, batch size, learning rate, steps of warm-up.
LONG_RANGE = {
    "listops": (96_000, 2000, 32, 1e-4, 1000),
    "pathfinder": (160_000, 1024, 128, 2e-4, 312),
    "image": (50_000, 1024, 256, 1e-4, 175),
    "text": (25_000, 4000, 32, 1e-4, 80),
    "retrieval": (147_086, 4000, 16, 2e-4, 800),
}


@pytest.mark.parametrize("task", LONG_RANGE)
def test_the_long_range_recipes_have_the_published_budget(task: str) -> None:
    recipe = load_sequences(f"lra-{task}")
    samples, length, batch, rate, warmup = LONG_RANGE[task]
    optimise, data, steps = recipe.optimise, recipe.data, samples // batch
    assert (data.task, data.length, data.train_samples or samples) == (task, length, samples)
    assert (optimise.batch_size, optimise.lr, optimise.weight_decay) == (batch, rate, 0)
    assert round(optimise.warmup_epochs * steps) == warmup
    assert 45_000 < steps * optimise.epochs <= 50_000
    assert (recipe.encoder.landmarks, recipe.encoder.dropout, recipe.encoder.depth) == (128, 0.1, 2)
    assert recipe.encoder.attention_args == {"qk_norm": True}  # and the gain is sqrt(m)
    assert SequenceEncoder(257, length, 2, attention_args=recipe.encoder.attention_args)


OLD_NAMES = {f"{family}-{size}": (family, size) for family in ("imagenet", *OLD_COCO) for size in SIZES}


@pytest.mark.parametrize("old", [*OLD_NAMES, *OLD_COCO])
def test_an_old_name_says_which_command_line_replaces_it(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "--recipe", old, "--output", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert (stop.value.code, said.count("\n")) == (2, 1)
    assert f"'{old}' was replaced by another with overrides" in said
    *words, option, name = (given := said.rpartition(": ")[2].split())[:6]
    assert [*words, option] == ["laplacianformer", "train", "--output", f"runs/{old}", "--recipe"]
    found = recipes.load(name, KINDS, given[6:])
    family, size = OLD_NAMES.get(old, (old, "tiny"))
    sized = {"imagenet": classification_size}.get(family, detection_size)(size)
    assert found == recipes.load(name, KINDS, [*OLD_COCO.get(family, ()), *sized])


@pytest.mark.parametrize(
    ("name", "images"), [("digits", 1437), ("cifar10", 50000), ("fashion-mnist", 60000), ("imagenet", 1281167)]
)
def test_the_decay_that_a_recipe_reaches_is_the_documented_one(name: str, images: int) -> None:
    optimise = load_classification(name).optimise
    steps = images // optimise.batch_size * optimise.epochs
    average = ModelEmaV3(nn.Linear(1, 1), optimise.ema_decay, use_warmup=True)
    row = rf"\| `?{name}(-\*)?`? \| {optimise.ema_decay} \| {steps:,} \| {average.get_decay(steps):.4f} \|"
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    assert re.search(row, text)


def test_overrides_change_the_recipe_and_are_typed() -> None:
    recipe = load_classification("cifar10", ["optimise.lr=1e-3", "data.cache=yes", "model.args.attention=softmax"])
    assert recipe.optimise.lr == 1e-3
    assert recipe.model.args == {"attention_args": {"grid": 4}, "attention": "softmax"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.optimise.lr = 2.0  # type: ignore[misc]


def test_a_recipe_survives_being_written_and_read(tmp_path: Path) -> None:
    recipe = load_classification("imagenet", ["augment.scale=[0.2, 1.0]"])
    (tmp_path / "copy.yaml").write_text(recipes.as_yaml(recipe))
    assert load_classification(str(tmp_path / "copy.yaml")) == recipe


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
def test_mistakes_are_reported_in_one_line(override: str) -> None:
    with pytest.raises(InputError, match=WRONG[override]) as error:
        load_classification("cifar10", [override])
    assert "\n" not in str(error.value)


WRONG_DETECTION = {
    "detector.name=yolo": r"detector\.name: .*'mask_rcnn' or 'retinanet', got 'yolo'",
    "data.short_sides=[1]": r"unknown key data\.short_sides, did you mean 'short_side'\?",
    "data.short_side=[2000]": r"data\.short_side must not be more than data\.long_side",
    "optimise.lr_steps=[11, 8]": r"optimise\.lr_steps must be in increasing order",
    "optimise.layer_decay=2": r"optimise\.layer_decay: .*less than or equal to 1, got 2",
    "augment.mixup=1": r"unknown key augment\.mixup",
}


@pytest.mark.parametrize("override", WRONG_DETECTION)
def test_mistakes_in_a_detection_recipe_are_reported_in_one_line(override: str) -> None:
    with pytest.raises(InputError, match=WRONG_DETECTION[override]) as error:
        load_detection("coco", [override])
    assert "\n" not in str(error.value)


def test_a_detection_recipe_survives_being_written_and_read(tmp_path: Path) -> None:
    recipe = load_detection("coco", ["detector.name=retinanet", "data.short_side=[480, 800]"])
    (tmp_path / "copy.yaml").write_text(recipes.as_yaml(recipe))
    assert load_detection(str(tmp_path / "copy.yaml")) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: {name: a}\noptimise: {epochs: 1}\nmodel: {name: b}",
            "'model' appears twice: it is in line 1 already",
        ),
        ("optimise:\n  epochs: 1\n  lr: 2\n  epochs: 3", "'epochs' appears twice: it is in line 2 already"),
        ("model: {name: a, args: {depths: [1], 'depths': [2]}}", "'depths' appears twice"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "twice.yaml").write_text(text)
    with pytest.raises(InputError, match=message) as error:
        load_classification(str(tmp_path / "twice.yaml"))
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="'a' appears twice"):
        load_classification("digits", ["model.args={a: 1, a: 2}"])


def test_unknown_recipes_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no recipe 'cifar', did you mean 'cifar10'\?"):
        load_classification("cifar")
    with pytest.raises(InputError, match="can't read the recipe"):
        load_classification(str(tmp_path / "none.yaml"))
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(InputError, match="expected sections"):
        load_classification(str(tmp_path / "list.yaml"))
    (tmp_path / "half.yaml").write_text(yaml.safe_dump({"model": {"name": "laplacianformer_nano"}, "data": {}}))
    with pytest.raises(InputError, match="optimise is missing"):
        load_classification(str(tmp_path / "half.yaml"))


def test_a_recipe_of_another_task_is_refused() -> None:
    with pytest.raises(InputError, match=r"recipe shapes-maskrcnn: expected a section model:"):
        load_classification("shapes-maskrcnn")
    with pytest.raises(InputError, match=r"recipe digits: expected a section detector:"):
        load_detection("digits")


def test_differences_are_dotted_keys() -> None:
    assert differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}) == ["a.c", "d", "e"]


def test_a_file_without_a_model_takes_it_from_the_overrides(tmp_path: Path) -> None:
    tree = {section: keys for section, keys in yaml.safe_load(text_of("digits")).items() if section != "model"}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    assert recipes.load(str(path), KINDS, ["model.name=laplacianformer_nano"]).model.name == "laplacianformer_nano"
    with pytest.raises(InputError, match="expected a section model: or detector: or segmenter: or encoder:"):
        recipes.load(str(path), KINDS)
