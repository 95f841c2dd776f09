"""What a recipe with a `segmenter:` section may say: every key, its type, its range and what it means."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from laplacianformer._util import limits
from laplacianformer.segmentation._labels import labels_of, read_labels
from laplacianformer.training import _recipes as recipes
from laplacianformer.training._recipe import (
    Count,
    EvaluatedRun,
    Fraction,
    Mean,
    OnBackbone,
    Optimise,
    Positive,
    Side,
    Std,
    Workers,
    check_warmup,
    checked,
)


def _check_labels(tree: dict[str, Any]) -> dict[str, Any]:
    """Raises what pydantic reports as a mistake in the recipe."""
    return labels_of(tree, "data.labels").tree()


@checked
class SegmenterSection(OnBackbone):
    """What is trained: a segmenter of `laplacianformer.segmentation` on a backbone of timm. `args` are those of its
    builder, such as channels."""

    name: Literal["semantic_fpn", "upernet"]


@checked
class SegmentationData:
    """Where images and label maps come from, and what the model sees of them."""

    reader: Literal["folders", "ade20k", "cityscapes", "shapes"] = "folders"
    root: str | None = None  # the folder of a data set; --data sets it
    train_images: str | None = None  # subfolders for the reader folders; none: see docs/segmentation.md
    train_labels: str | None = None
    val_images: str | None = None
    val_labels: str | None = None
    # What the values in label maps mean: classes and ignore, or a YAML file with these keys; none: labels.yaml in root.
    labels: Annotated[dict[str, Any], AfterValidator(_check_labels)] | None = None
    short_side: Side | None = None  # pixels that images are resized to before anything else; none: as they are
    crop: tuple[Side, Side] = (512, 512)  # height and width in training
    window: Side | None = None  # pixels: images are evaluated in square windows of this side; none: whole
    window_stride: Side | None = None  # pixels from one window to the next; none: two thirds of a window
    mean: tuple[Mean, Mean, Mean] = (0.485, 0.456, 0.406)
    std: tuple[Std, Std, Std] = (0.229, 0.224, 0.225)
    workers: Workers = 4  # processes that load images, for each training process
    corrupt_limit: Fraction = 0.01  # stop when more than this fraction of an epoch's images can't be read
    shapes_train: Count = 1000  # number of generated images, for the reader shapes
    shapes_val: Count = 200
    shapes_size: Annotated[int, Field(ge=32, le=limits.MOST_SIDE)] = 128  # pixels


@checked
class SegmentationAugment:
    """What is done to training images and their label maps; in this order, with a crop between scale and flip."""

    scale: tuple[Positive, Positive] = (0.5, 2.0)  # range of a random factor on the size
    largest_class: Fraction = 0.75  # a crop with more than this fraction of one class is drawn again, up to ten times
    flip: Fraction = 0.5
    colour: Fraction = 0.5  # probability of each of: brightness, contrast, saturation, hue


@checked
class SegmentationOptimise(Optimise):
    """Optimiser and schedule: a linear warm-up, then (1 - progress) ^ 0.9, which the field calls poly."""

    decay: ClassVar[Literal["cosine", "linear", "poly"]] = "poly"

    min_lr: Annotated[float, Field(ge=0)] = 0.0


@checked
class SegmentationRecipe:
    """One training run of a segmenter."""

    segmenter: SegmenterSection
    data: SegmentationData
    augment: SegmentationAugment = Field(default_factory=SegmentationAugment)
    optimise: SegmentationOptimise
    run: EvaluatedRun = Field(default_factory=EvaluatedRun)

    @staticmethod
    def complete(tree: dict[str, Any]) -> None:
        """Put the contents of the file that data.labels names into the recipe."""
        data = tree.get("data")
        if isinstance(data, dict) and isinstance(data.get("labels"), str):
            data["labels"] = read_labels(Path(data["labels"])).tree()

    @model_validator(mode="after")
    def _fits_together(self) -> "SegmentationRecipe":
        check_warmup(self.optimise)
        if self.augment.scale[0] > self.augment.scale[1]:
            raise ValueError("augment.scale must be the smaller factor first")
        if self.data.window is None and self.data.window_stride is not None:
            raise ValueError("data.window_stride is the step of data.window: give both")
        if self.data.window is not None and (self.data.window_stride or 1) > self.data.window:
            raise ValueError("data.window_stride must not be more than data.window, or pixels would be left out")
        if self.run.strategy == "fsdp":
            raise ValueError("run.strategy=fsdp is for classification: segmenters train with ddp")
        return self


def load_recipe(name: str, overrides: Iterable[str] = ()) -> SegmentationRecipe:
    """A recipe of the package by name, or of a .yaml file, with `section.key=value` overrides."""
    return recipes.load(name, {"segmenter": SegmentationRecipe}, overrides)
