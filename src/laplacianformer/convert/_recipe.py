"""What a recipe with a `teacher:` section may say: every key, its type, its range and what it means."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from pydantic import Field, model_validator

from laplacianformer.classification._recipe import Augment, Data, Model
from laplacianformer.classification._recipe import Recipe as ClassificationRecipe
from laplacianformer.training import _recipes as recipes
from laplacianformer.training._recipe import (
    Count,
    ModelArguments,
    NotNegative,
    Optimise,
    Positive,
    Run,
    check_warmup,
    checked,
)

Section = TypeVar("Section")
PhaseName = Literal["match", "distil"]


@checked
class Teacher:
    """The trained model with softmax attention."""

    name: str  # a name of timm, or a weights file of this package
    # A file with the tensors of the model that `name` says: .safetensors, or a state dict that torch saved. None: those
    # of timm's hub.
    weights: str | None = None
    args: ModelArguments = Field(default_factory=dict)  # of timm.create_model
    # A JSON file with the names of the outputs: a list, or {name: output}. None: those of the weights file, or else the
    # folders of the data in alphabetical order.
    classes: str | None = None


@checked
class Convert:
    """What takes the place of softmax attention."""

    layers: tuple[int, ...] | None = None  # attention layers, from 0; none: all
    attention: str = "laplacian"  # or, to compare: another token mixer, or a control: mean-over-queries
    attention_args: ModelArguments = Field(default_factory=dict)  # of the token mixer
    calibration_images: Count = 32  # on which scale and gain of each head are chosen
    # What the new layers may learn. scales: scale and gain of each head; low-rank: also biases, the convolution, and
    # updates of low rank to the projections; directions: all but the scale of each head. The rest of the model is
    # trained by `distil`, whatever this says.
    learn: Literal["all", "directions", "low-rank", "scales"] = "all"
    rank: Count = 8  # of these updates
    match_samples: Count | None = None  # images of the phase `match`, evenly; none: as in `distil`
    # The loss of the phase `distil` is the sum of these, each with its weight.
    logits: NotNegative = 0.1  # Kullback-Leibler divergence from the teacher's probabilities
    temperature: Positive = 1.0  # of both
    features: NotNegative = 10.0  # relative squared error of feature maps and final tokens
    labels: NotNegative = 0.0  # cross-entropy with the labels of the data


@checked
class Phase(ClassificationRecipe):
    """One of the two trainings of a conversion, as the loop sees it."""

    teacher: Teacher
    convert: Convert


@checked
class ConvertRecipe:
    """One conversion: layers are matched to the teacher's, then the whole model is distilled."""

    teacher: Teacher
    convert: Convert = Field(default_factory=Convert)
    data: Data
    augment: Augment = Field(default_factory=Augment)
    match: Optimise
    distil: Optimise
    run: Run = Field(default_factory=Run)

    @model_validator(mode="after")
    def _fits_together(self) -> "ConvertRecipe":
        if self.match.ema_decay:
            raise ValueError("match.ema_decay must be 0: only distil keeps an average of the weights")
        if self.run.strategy == "fsdp":
            raise ValueError("run.strategy=fsdp can't be used: a conversion needs the teacher whole in every process")
        if self.augment.mixup or self.augment.cutmix:
            raise ValueError("augment.mixup and augment.cutmix mix labels: a conversion learns from the teacher")
        if self.convert.layers is not None and (not self.convert.layers or min(self.convert.layers) < 0):
            raise ValueError("convert.layers must be numbers from 0, at least one")
        if self.convert.logits == self.convert.features == self.convert.labels == 0:
            raise ValueError("convert.logits, convert.features and convert.labels are all 0: nothing is learned")
        check_warmup(self.match)
        check_warmup(self.distil)
        return self

    @property
    def optimise(self) -> Optimise:
        """Of the phase that the weights come from."""
        return self.distil

    def phase(self, name: PhaseName) -> Phase:
        """What the loop is given."""
        data = self.data
        if name == "match" and self.convert.match_samples is not None:
            data = changed(data, train_samples=self.convert.match_samples)
        make: Any = Phase  # of pydantic, which mypy does not see through `checked`
        section: Any = Model
        phase: Phase = make(
            model=section(name=self.teacher.name, args=self.teacher.args),
            teacher=self.teacher,
            convert=self.convert,
            data=data,
            augment=self.augment,
            optimise=getattr(self, name),
            run=self.run,
        )
        return phase


def load_recipe(name: str, overrides: Iterable[str] = ()) -> ConvertRecipe:
    """A recipe of the package by name, or of a .yaml file, with `section.key=value` overrides."""
    return recipes.load(name, {"teacher": ConvertRecipe}, overrides)


def without_paths(recipe: ConvertRecipe) -> ConvertRecipe:
    """The recipe for a weights file: names of files, not where they were."""
    told = {key: _last(getattr(recipe.teacher, key)) for key in ("name", "weights", "classes")}
    return changed(recipe, teacher=changed(recipe.teacher, **told))


def changed(section: Section, **values: Any) -> Section:
    """A copy of a recipe, or of a section of one, with other values."""
    copy: Any = dataclasses.replace
    found: Section = copy(section, **values)
    return found


def _last(path: str | None) -> str | None:
    return None if path is None else path.replace("\\", "/").rpartition("/")[2]
