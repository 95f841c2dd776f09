"""What a recipe with a `detector:` section may say: every key, its type, its range and what it means."""

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from laplacianformer._util import limits
from laplacianformer.training import _recipes as recipes
from laplacianformer.training._recipe import (
    SIZES,
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
    overrides_for_size,
)


@checked
class Detector(OnBackbone):
    """What is trained: a detector of `laplacianformer.detection` on a backbone of timm.

    `args` are those of its builder, such as channels, anchor_scale, head_width.
    """

    name: Literal["mask_rcnn", "retinanet"]


@checked
class DetectionData:
    """Where images and boxes come from, and what the model sees of them."""

    reader: Literal["coco", "shapes"] = "coco"
    root: str | None = None  # the folder of a COCO data set; --data sets it
    train_annotations: str | None = None  # a file in the folder; none: instances_train*.json, also in annotations/
    val_annotations: str | None = None
    train_images: str | None = None  # a subfolder; none: train2017/ for instances_train2017.json
    val_images: str | None = None
    short_side: tuple[Side, ...] = (800,)  # pixels; each training image draws one, evaluation takes the last
    long_side: Side = 1333  # at most
    mean: tuple[Mean, Mean, Mean] = (0.485, 0.456, 0.406)
    std: tuple[Std, Std, Std] = (0.229, 0.224, 0.225)
    workers: Workers = 4  # processes that load images, for each training process
    corrupt_limit: Fraction = 0.01  # stop when more than this fraction of an epoch's images can't be read
    shapes_train: Count = 1000  # number of generated images, for the reader shapes
    shapes_val: Count = 200
    shapes_size: Annotated[int, Field(ge=32, le=limits.MOST_SIDE)] = 128  # pixels


@checked
class DetectionAugment:
    """What is done to training images, their boxes and masks, before they are resized; in this order."""

    colour: Fraction = 0.0  # probability of each of: brightness, contrast, saturation, hue
    zoom_out: Fraction = 0.0  # probability of a border of up to twice the image, filled with its mean colour
    crop: Fraction = 0.0  # probability of a crop that keeps enough of an object
    flip: Fraction = 0.5


@checked
class DetectionOptimise(Optimise):
    """Optimiser and schedule: as for classification, or with steps."""

    lr_steps: tuple[Positive, ...] = ()  # epochs after which the learning rate drops to a tenth; none: a cosine


def size_overrides(size: str) -> tuple[str, ...]:
    """The overrides that set the size of the model in the recipe coco: "small", for example."""
    return overrides_for_size("detector.backbone", "detector.backbone_args", size)


_COCO = {"coco-maskrcnn": ("coco",), "coco-retinanet": ("coco", "detector.name=retinanet")}
_REPLACED = {
    **{old: " ".join(new) for old, new in _COCO.items()},
    **{f"{old}-{size}": " ".join((*new, *size_overrides(size))) for old, new in _COCO.items() for size in SIZES},
}


@checked
class DetectionRecipe:
    """One training run of a detector."""

    replaced: ClassVar[Mapping[str, str]] = _REPLACED  # recipes that no longer exist: what follows --recipe now

    detector: Detector
    data: DetectionData
    augment: DetectionAugment = Field(default_factory=DetectionAugment)
    optimise: DetectionOptimise
    run: EvaluatedRun = Field(default_factory=EvaluatedRun)

    @model_validator(mode="after")
    def _fits_together(self) -> "DetectionRecipe":
        check_warmup(self.optimise)
        if list(self.optimise.lr_steps) != sorted(self.optimise.lr_steps):
            raise ValueError("optimise.lr_steps must be in increasing order")
        if max(self.data.short_side) > self.data.long_side:
            raise ValueError("data.short_side must not be more than data.long_side")
        if self.run.strategy == "fsdp":
            raise ValueError("run.strategy=fsdp is for classification: detectors train with ddp")
        return self


def load_recipe(name: str, overrides: Iterable[str] = ()) -> DetectionRecipe:
    """A recipe of the package by name, or of a .yaml file, with `section.key=value` overrides."""
    return recipes.load(name, {"detector": DetectionRecipe}, overrides)
