"""What a recipe with an `encoder:` section may say: every key, its type, its range and what it means."""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from laplacianformer._util import limits
from laplacianformer.sequences._sources import IMAGES, TaskName, Wanted, check_length
from laplacianformer.sequences._weights import load_encoder
from laplacianformer.training import _recipes as recipes
from laplacianformer.training._recipe import (
    Count,
    Depth,
    EvaluatedRun,
    Fraction,
    ModelArguments,
    Optimise,
    Width,
    Workers,
    check_warmup,
    checked,
)


@checked
class Encoder:
    """What is trained: a `SequenceEncoder`. The defaults are those of the published comparison."""

    # A token mixer: laplacian, ablation, softmax, soft, soft++, skyformer, nystromformer, performer, linear, cosformer,
    # inline, hedgehog or spatial-reduction. Or a control, see `SequenceEncoder`: no-mixing, mean-over-queries, local,
    # none or mean.
    attention: str = "laplacian"
    attention_args: ModelArguments = Field(default_factory=dict)  # of the token mixer, such as gain
    axes: Literal[1, 2] = 1  # of the grid of tokens; 2: those of square images, which then have landmarks in squares
    local: bool = True  # the convolution beside the attention; without it, attention alone mixes tokens
    landmarks: Width | None = 128  # or random features, where the token mixer has either; with two axes, a square
    dim: Width = 64
    depth: Depth = 2
    num_heads: Width = 2
    mlp_dim: Width = 128
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    # A weights file of an encoder to start from. Its head is replaced where the task or the classes are others.
    weights: str | None = None


@checked
class SequenceData:
    """Where sequences come from."""

    task: TaskName
    root: str | None = None  # the folder of images or texts; --data sets it
    reader: str = "folder"  # of images: folder (also a tar), digits, or timm's torch/ and hfds/ names
    train_split: str = "train"
    val_split: str = "validation"
    # Tokens at most: texts are cut, ListOps is shorter, images have as many.
    length: Annotated[int, Field(ge=4, le=limits.LARGEST_ARGUMENT)] = 1024
    # Of ListOps: tokens; expressions are longer than that. The rules give hardly any of more than 8,000.
    shortest: Annotated[int, Field(ge=4, le=4000)] = 500
    # For generated tasks, the number of sequences. For others, the most, spread evenly over all.
    train_samples: Count | None = None
    val_samples: Count | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0  # of generated tasks and hidden pixels, which run.seed leaves alone
    cache: bool = False  # keep each sequence in memory once it is read or generated (in each worker, if there are any)
    workers: Workers = 4  # processes that read or generate, for each training process
    corrupt_limit: Fraction = 0.01  # stop when more than this fraction of an epoch's sequences can't be read

    def wanted(self, split: str, samples: int | None) -> Wanted:
        """What to open for a split."""
        return Wanted(self.task, split, self.length, self.root, self.reader, samples, self.seed, self.shortest)


@checked
class SequenceOptimise(Optimise):
    """Optimiser and schedule: a linear warm-up, then a line to min_lr, as in the published comparison."""

    decay: ClassVar[Literal["cosine", "linear", "poly"]] = "linear"


@checked
class SequenceRecipe:
    """One training run of an encoder of sequences."""

    encoder: Encoder = Field(default_factory=Encoder)
    data: SequenceData
    optimise: SequenceOptimise
    run: EvaluatedRun = Field(default_factory=EvaluatedRun)

    @staticmethod
    def complete(tree: dict[str, Any]) -> None:
        """Fill in what is left to the weights to start from: the arguments of their encoder."""
        encoder = tree.get("encoder")
        if not isinstance(encoder, dict) or not isinstance(encoder.get("weights"), str):
            return
        arguments = load_encoder(encoder["weights"]).model.arguments
        for key in Encoder.__annotations__:
            if key != "weights":
                encoder.setdefault(key, arguments[key])

    @model_validator(mode="after")
    def _fits_together(self) -> "SequenceRecipe":
        check_warmup(self.optimise)
        check_length(self.data.task, self.data.length, self.data.shortest)
        if self.encoder.axes == 2 and self.data.task not in IMAGES:
            raise ValueError(f"encoder.axes=2 is for images ({', '.join(IMAGES)}), not for {self.data.task}")
        if self.run.strategy == "fsdp":
            raise ValueError("run.strategy=fsdp is for classification: encoders of sequences train with ddp")
        return self


def load_recipe(name: str, overrides: Iterable[str] = ()) -> SequenceRecipe:
    """A recipe of the package by name, or of a .yaml file, with `section.key=value` overrides."""
    return recipes.load(name, {"encoder": SequenceRecipe}, overrides)
