"""What the recipes of all tasks share: the sections `optimise` and `run`, and the types of their numbers.

A recipe is a dataclass that pydantic checks. Each task defines its own, with these two sections in it.
"""

from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from laplacianformer._util import limits

Count = Annotated[int, Field(ge=1, le=limits.MOST_OPTION)]
Workers = Annotated[int, Field(ge=0, le=limits.MOST_PROCESSES)]
Width = Annotated[int, Field(ge=1, le=limits.LARGEST_ARGUMENT)]  # of a part of a model
Depth = Annotated[int, Field(ge=1, le=limits.DEEPEST)]  # how often a part is repeated
Side = Annotated[int, Field(ge=1, le=limits.MOST_SIDE)]  # pixels
Std = Annotated[float, Field(ge=limits.STD_RANGE[0], le=limits.STD_RANGE[1])]
Mean = Annotated[float, Field(ge=-limits.MOST_MEAN, le=limits.MOST_MEAN)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]

checked = dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))


@checked
class Optimise:
    """Optimiser and schedule: a linear warm-up, then a cosine to min_lr, or a power of a line where a task says so."""

    decay: ClassVar[Literal["cosine", "linear", "poly"]] = "cosine"

    epochs: Count
    batch_size: Count  # summed over all processes
    lr: Positive
    lr_batch: Count | None = None  # batch size that lr is for: it is scaled linearly to batch_size; none: not scaled
    optimiser: str = "adamw"  # a name of timm, or muon32: Muon in float32
    weight_decay: NotNegative = 0.05  # not on norms, biases and per-head parameters
    # Factor on the learning rate per layer towards the input; 1: all layers have the same. For detectors, in the
    # backbone.
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    warmup_epochs: NotNegative = 0.0
    warmup_lr: NotNegative = 1e-6
    min_lr: NotNegative = 1e-5
    clip_norm: Positive | None = 1.0
    # Decay of the averaged weights; 0: no average. After step s it is at most 1 - s^(-2/3), so that the average soon
    # forgets the initial weights: 0.99 takes 1,000 steps, 0.998 takes 11,181, 0.9999 a million. Shorter runs end lower.
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0


@checked
class Run:
    """How the training is run. The seed, the precision and the number of processes change the result."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Count | Literal["auto"] = "auto"  # per machine; torchrun and SLURM set it themselves
    num_nodes: Count = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"  # fsdp: weights are sharded; auto: ddp with several processes
    log_steps: Count = 50  # steps between two rows of metrics.csv
    checkpoint_steps: Count = 500  # steps between two checkpoints; there is also one after every epoch
    tensorboard: bool = True  # where it is installed


@checked
class EvaluatedRun(Run):
    """How the training is run where not every epoch is worth an evaluation."""

    eval_epochs: Count = 1  # epochs between two evaluations; there is also one after the last

    def evaluation_due(self, epoch: int, epochs: int) -> bool:
        """Whether to evaluate after this many epochs out of `epochs`."""
        return epoch % self.eval_epochs == 0 or epoch == epochs


class _AnyData(Protocol):
    """What the loop reads from the section `data` of a recipe."""

    @property
    def corrupt_limit(self) -> float: ...


class AnyRecipe(Protocol):
    """What the loop reads from a recipe, whatever its task."""

    @property
    def data(self) -> _AnyData: ...

    @property
    def optimise(self) -> Optimise: ...

    @property
    def run(self) -> Run: ...


def _check_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Raises what pydantic reports as a mistake in the recipe."""
    limits.check_arguments(arguments, "it")
    for name, value in arguments.items():
        if name.endswith("_rate") and not (limits.finite(value) and 0 <= value < 1):
            raise ValueError(f"{name} must be a number from 0 to below 1, got {limits.shown(value)}")
    return arguments


# Arguments of timm.create_model, or of a token mixer.
ModelArguments = Annotated[dict[str, Any], AfterValidator(_check_arguments)]


@checked
class OnBackbone:
    """What is trained on a backbone of timm. A task says which names there are, and what the arguments are for."""

    name: str  # of a builder of the task
    backbone: str
    backbone_args: ModelArguments = Field(default_factory=dict)  # of timm.create_model, such as drop_path_rate
    # To start from: a weights file, of a classifier for the backbone or of the task for all; or a name of timm.
    weights: str | None = None
    frozen_stages: Annotated[int, Field(ge=0)] = 0  # number of stages of the backbone, from the first, that don't train
    frozen_statistics: bool = False  # whitening and batch norm of the backbone keep their running statistics
    args: dict[str, Any] = Field(default_factory=dict)  # of the builder


# Stochastic depth per size of the backbone, for training from the start.
_DROP_PATH_RATES = {"tiny": 0.1, "small": 0.1, "medium": 0.2, "large": 0.3, "huge": 0.4}
SIZES = tuple(_DROP_PATH_RATES)


def overrides_for_size(name_key: str, arguments_key: str, size: str) -> tuple[str, ...]:
    """The overrides that set the size of the backbone in a recipe, by its keys for the name and the arguments."""
    return f"{name_key}=laplacianformer_{size}", f"{arguments_key}.drop_path_rate={_DROP_PATH_RATES[size]}"


def check_warmup(optimise: Optimise) -> None:
    """Raises what pydantic reports as a mistake in the recipe."""
    if optimise.warmup_epochs >= optimise.epochs:
        raise ValueError("optimise.warmup_epochs must be less than optimise.epochs")
