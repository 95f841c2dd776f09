"""What a recipe with a `model:` section may say: every key, its type, its range and what it means."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer.training import _recipes as recipes
from laplacianformer.training._recipe import (
    SIZES,
    Count,
    Fraction,
    Mean,
    ModelArguments,
    NotNegative,
    Optimise,
    Positive,
    Run,
    Side,
    Std,
    Workers,
    check_warmup,
    checked,
    overrides_for_size,
)
from laplacianformer.weights._file import FORBIDDEN
from laplacianformer.weights._start import read_start


@checked
class Model:
    """What is trained: `timm.create_model(name, num_classes=..., **args)`, from random weights or from others."""

    name: str  # `load_recipe` takes it from the weights where there are some; args adds to theirs
    args: ModelArguments = Field(default_factory=dict)
    # To start from: a weights file of a classifier, or a name of timm, whose weights are downloaded. Their head is
    # replaced where the classes are others.
    weights: str | None = None
    frozen_stages: Annotated[int, Field(ge=0)] = 0  # number of stages, from the first, that don't train
    frozen_statistics: bool = False  # whitening and batch norm keep their running statistics


@checked
class Data:
    """Where images come from and what the model sees of them."""

    reader: str = "folder"  # folder (also a tar), digits, idx, or timm's torch/, hfds/, hfids/, tfds/, wds/ names
    root: str | None = None  # the folder; --data sets it
    train_split: str = "train"
    val_split: str = "validation"
    num_classes: Count | None = None  # needed where the reader doesn't know: wds/, hfids/
    # For wds/ without an _info file: the number of images. For readers that are no streams: the most to take, evenly.
    train_samples: Count | None = None
    val_samples: Count | None = None
    size: Side = 224
    crop_pct: Annotated[float, Field(gt=0, le=1)] = 0.9  # fraction of the resized image that evaluation sees
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    mean: tuple[Mean, Mean, Mean] = (0.485, 0.456, 0.406)
    std: tuple[Std, Std, Std] = (0.229, 0.224, 0.225)
    cache: bool = False  # decode every image once and keep it in memory, as bytes
    workers: Workers = 4  # processes that load images, for each training process
    corrupt_limit: Fraction = 0.01  # stop when more than this fraction of an epoch's images can't be read
    repeats: Count = 1  # copies of each sample, differently augmented, in an epoch (of fewer samples)

    @property
    def input(self) -> dict[str, Any]:
        """The input that the model expects, as in a weights file."""
        stated = {key: getattr(self, key) for key in ("mean", "std", "interpolation", "crop_pct")}
        return {"size": (3, self.size, self.size), **stated}


@checked
class Augment:
    """What is done to training images. Cached images take flip and crop_padding; others take all but crop_padding."""

    flip: Fraction = 0.5
    crop_padding: Annotated[int, Field(ge=0)] = 0  # pixels around the image before a random crop
    scale: tuple[Positive, Positive] | None = None  # area of a random resized crop, as a fraction; none: (0.08, 1)
    color_jitter: NotNegative = 0.0
    rand_augment: str | None = None  # a name of timm, such as rand-m9-mstd0.5-inc1
    erase: Fraction = 0.0
    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0


def size_overrides(size: str) -> tuple[str, ...]:
    """The overrides that set the size of the model in the recipe imagenet: "small", for example."""
    return overrides_for_size("model.name", "model.args", size)


_REPLACED = {f"imagenet-{size}": " ".join(("imagenet", *size_overrides(size))) for size in SIZES}


@checked
class Recipe:
    """One training run of a classifier."""

    replaced: ClassVar[Mapping[str, str]] = _REPLACED  # recipes that no longer exist: what follows --recipe now

    model: Model
    data: Data
    augment: Augment = Field(default_factory=Augment)
    optimise: Optimise
    run: Run = Field(default_factory=Run)

    @staticmethod
    def complete(tree: dict[str, Any]) -> None:
        """Fill in what is left to the weights to start from: the model, and the size and range of its images."""
        model, data = tree.get("model"), tree.get("data")
        if not isinstance(model, dict) or not isinstance(data, dict):
            return  # a mistake that is reported like any other
        weights = model.get("weights")
        if not isinstance(weights, str):
            if "name" not in model:
                raise InputError("the recipe has no model: give --weights FILE to start from, or model.name=NAME")
            return
        start = read_start(weights)
        name = model.setdefault("name", start.architecture)
        if str(name).partition(".")[0] != start.architecture:
            raise InputError(f"{weights} holds a {start.architecture}: expected a {name}, the model.name of the recipe")
        channels, side, _ = start.input["size"]
        if channels != 3:
            raise InputError(f"{weights} is for images of {channels} channels: recipes train on images of 3")
        stated = model.setdefault("args", {})
        if isinstance(stated, dict):
            model["args"] = {**start.model_args, **stated}
        for key, value in {**start.input, "size": side}.items():
            data.setdefault(key, value)

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        if self.data.cache:
            for key in ("scale", "color_jitter", "rand_augment", "erase"):
                if getattr(self.augment, key):
                    raise ValueError(f"augment.{key} needs data.cache: false; cached images take flip and crop_padding")
        elif self.augment.crop_padding:
            raise ValueError("augment.crop_padding needs data.cache: true; use augment.scale")
        if self.model.weights is not None and FORBIDDEN & self.model.args.keys():
            raise ValueError("model.args.pretrained and the like name weights, too: leave them out with model.weights")
        if self.model.args.get("features_only"):
            raise ValueError("model.args.features_only makes a model without classes, which can't be trained")
        if self.data.size > limits.MOST_SIDE * self.data.crop_pct:
            raise ValueError(f"data.size / data.crop_pct must be at most {limits.MOST_SIDE}")
        check_warmup(self.optimise)
        return self


def load_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe of the package by name, or of a .yaml file, with `section.key=value` overrides."""
    return recipes.load(name, {"model": Recipe}, overrides)
