"""What a recipe may say. Every key, its type, its range and what it means; pydantic does the checking."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]

checked = dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))


@checked
class Model:
    """What is trained: `timm.create_model(name, num_classes=..., **args)`."""

    name: str
    args: dict[str, Any] = Field(default_factory=dict)


@checked
class Data:
    """Where images come from and what the model sees of them."""

    reader: str = "folder"  # folder (also a tar), digits, idx, or timm's torch/, hfds/, hfids/, tfds/, wds/ names
    root: str | None = None  # the folder; --data sets it
    train_split: str = "train"
    val_split: str = "validation"
    num_classes: Count | None = None  # needed where the reader doesn't know: wds/, hfids/
    # Of wds/ without an _info file: how many there are. Of all but streams: at most so many, spread evenly over all.
    train_samples: Count | None = None
    val_samples: Count | None = None
    size: Count = 224
    crop_pct: Annotated[float, Field(gt=0, le=1)] = 0.9  # of the resized image, in evaluation
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    mean: tuple[Finite, Finite, Finite] = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    cache: bool = False  # decode every image once and keep it in memory, as bytes
    workers: Annotated[int, Field(ge=0)] = 4  # processes that load images, for each training process
    corrupt_limit: Share = 0.01  # stop when more than this share of an epoch's images can't be read
    repeats: Count = 1  # copies of each sample, differently augmented, in an epoch (of fewer samples)

    @property
    def input(self) -> dict[str, Any]:
        """What the model takes of an image, as in a weights file."""
        taken = {key: getattr(self, key) for key in ("mean", "std", "interpolation", "crop_pct")}
        return {"size": (3, self.size, self.size), **taken}


@checked
class Augment:
    """What is done to training images. Cached images take flip and crop_padding; others take all but crop_padding."""

    flip: Share = 0.5
    crop_padding: Annotated[int, Field(ge=0)] = 0  # pixels around the image before a random crop
    scale: tuple[Positive, Positive] | None = None  # share of the image in a random resized crop; none: (0.08, 1)
    color_jitter: NotNegative = 0.0
    rand_augment: str | None = None  # timm's name, as rand-m9-mstd0.5-inc1
    erase: Share = 0.0
    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0


@checked
class Optimise:
    """Optimiser and schedule: a linear warm-up, then a cosine to min_lr."""

    epochs: Count
    batch_size: Count  # of all processes together
    lr: Positive
    lr_batch: Count | None = None  # the batch size that lr is for: lr grows linearly with the batch; none: batch_size
    optimiser: str = "adamw"  # timm's name, or muon32: Muon in float32
    weight_decay: NotNegative = 0.05  # not on norms, biases and per-head parameters
    warmup_epochs: NotNegative = 0.0
    warmup_lr: NotNegative = 1e-6
    min_lr: NotNegative = 1e-5
    clip_norm: Positive | None = 1.0
    # Of the averaged weights; 0: no average. After step s it is at most 1 - s^(-2/3), so that the average soon forgets
    # the first weights: 0.99 takes 1,000 steps, 0.998 takes 11,181, 0.9999 a million. Shorter runs end with less.
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0


@checked
class Run:
    """How it is run. The seed, the precision and the number of processes change the result."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Count | Literal["auto"] = "auto"  # on each machine; torchrun and SLURM set it themselves
    num_nodes: Count = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"  # fsdp: weights split over the processes; auto: ddp for many
    log_steps: Count = 50  # a row in metrics.csv every so many steps
    checkpoint_steps: Count = 500  # a checkpoint every so many steps, and after every epoch
    tensorboard: bool = True  # where it is installed


@checked
class Recipe:
    """One training run."""

    model: Model
    data: Data
    augment: Augment = Field(default_factory=Augment)
    optimise: Optimise
    run: Run = Field(default_factory=Run)

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        if self.data.cache:
            for key in ("scale", "color_jitter", "rand_augment", "erase"):
                if getattr(self.augment, key):
                    raise ValueError(f"augment.{key} needs data.cache: false; cached images take flip and crop_padding")
        elif self.augment.crop_padding:
            raise ValueError("augment.crop_padding needs data.cache: true; use augment.scale")
        if self.optimise.warmup_epochs >= self.optimise.epochs:
            raise ValueError("optimise.warmup_epochs must be less than optimise.epochs")
        return self
