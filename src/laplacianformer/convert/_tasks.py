"""The two trainings of a conversion, as the loop sees them: layers that match the teacher's, then the whole model."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import write_tensors
from laplacianformer.attention import GridAttention
from laplacianformer.classification._batches import Loaders
from laplacianformer.convert._held_out import HeldOut
from laplacianformer.convert._learn import folded
from laplacianformer.convert._losses import divergence, labelled_loss
from laplacianformer.convert._recipe import Phase, PhaseName
from laplacianformer.convert._teacher import TeacherModel
from laplacianformer.data import NO_LABEL, Batch
from laplacianformer.inspect._matching import compare_attention, relative_error, watch
from laplacianformer.ops._pooling import Size
from laplacianformer.training._report import Table

_BEFORE = ("step", "epoch", "loss")
_AFTER = (
    *("lr", "gradient_norm", "images_per_second", "data_wait"),
    *("kernel_mean", "residual"),  # of the Laplacian attention layers, on a few images of the batch
    # Fraction of held-out images with the teacher's class, or mean cosine of the features of a model without classes;
    # empty except at the end of an epoch.
    "agreement",
    "validation_accuracy",  # where labels are known
)
_INSPECTED = 4  # images on which the attention is inspected
_OF_HEADS = (".gain", ".log_scale")  # how the names of parameters with one number per head end
_RATE_OF_HEADS = 10.0  # their learning rate, over that of the weights: gains start at 5 to 10, weights below 1


@dataclass
class Work:
    """What both trainings share."""

    teacher: TeacherModel
    student: Any  # the model with the new layers
    layers: dict[str, GridAttention]  # which are in it
    fabric: Any
    held_out: HeldOut
    metadata: dict[str, str]  # of the weights file
    numbers: Sequence[int]  # for each class of the data the output that it stands for, or NO_LABEL
    digest: str = ""  # of the images, if there is one


class _Task:
    """Scores on held-out images, files and rows: what is the same in both."""

    lr_steps = ()
    model: nn.Module
    phase: PhaseName
    own_columns: tuple[str, ...] = ()

    def __init__(self, recipe: Phase, work: Work, loaders: Loaders) -> None:
        self.recipe, self.work, self.fabric = recipe, work, work.fabric
        self.title, self.batches = f"{work.teacher.name}: {self.phase}", loaders.train
        self.classes, self.images = loaders.classes, loaders.images
        self.columns, self.numbers = (*_BEFORE, *self.own_columns, *_AFTER), self.own_columns
        self.agreement = self.accuracy = math.nan
        self.evaluated: Any = work.student  # with the weights that count
        self.teacher_digest = work.teacher.origin()["sha256"]

    def parameters(self) -> list[dict[str, Any]]:
        """Matrices with weight decay, vectors without, and what there is one of per head, which learns faster."""
        learned = [(name, part) for name, part in self.model.named_parameters() if part.requires_grad]
        of_heads = [part for name, part in learned if name.endswith(_OF_HEADS)]
        vectors = [part for name, part in learned if part.ndim < 2 and not name.endswith(_OF_HEADS)]
        matrices = [part for _, part in learned if part.ndim >= 2]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": self.recipe.optimise.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
            {"params": of_heads, "weight_decay": 0.0, "lr_scale": _RATE_OF_HEADS},
        ]
        return [group for group in groups if group["params"]]

    def errors(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """The relative squared error of each output, over the batches of all processes."""
        average = partial(self.fabric.all_reduce, reduce_op="mean")
        return torch.stack([relative_error(*pair, average) for pair in zip(outputs, targets, strict=True)])

    def evaluation_due(self, epoch: int) -> bool:
        return True

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Agreement with the teacher, and accuracy where labels are known."""
        self.evaluated = self.whole(model).eval()
        self.agreement, self.accuracy = self.work.held_out.scores(self.evaluated)
        scores = {"agreement": self.agreement, "validation_accuracy": self.accuracy}
        return {name: value for name, value in scores.items() if not math.isnan(value)}

    def whole(self, model: nn.Module) -> nn.Module:
        """The whole model of what is trained."""
        return self.work.student

    def attention_input(self, batch: Batch) -> tuple[nn.Module, Tensor]:
        return self.work.student.eval(), self.fabric.to_device(batch.images[:_INSPECTED])

    def line(self, row: Mapping[str, Any]) -> str:
        accuracy = "" if math.isnan(self.accuracy) else f", accuracy {self.accuracy:.2%}"
        return (
            f"{self.phase}, epoch {row['epoch']:.0f} of {self.recipe.optimise.epochs}: loss {row['loss']:.3f}, "
            f"agreement with the teacher {self.agreement:.2%}{accuracy}, {row['images_per_second']} images/s"
        )

    def summary(self) -> list[tuple[str, str]]:
        rows = [("agreement with the teacher", f"{self.agreement:.2%}")]
        if not math.isnan(self.accuracy):
            teacher = self.work.held_out.teacher_accuracy
            beside = "" if math.isnan(teacher) else f" (teacher: {teacher:.2%})"
            rows.append(("accuracy on held-out images", f"{self.accuracy:.2%}{beside}"))
        return rows

    def tables(self) -> list[Table]:
        """How well each layer matches, on a few held-out images."""
        images = self.fabric.to_device(next(iter(self.work.held_out.batches)).images[:_INSPECTED])
        matching = compare_attention(self.evaluated, self.work.teacher.model, images)
        rows = tuple((row.layer, f"{row.error:.3f}", f"{row.cosine:.3f}") for row in matching)
        return [Table("Converted layers", ("layer", "relative squared error", "cosine of attention rows"), rows)]

    def scores(self) -> dict[str, float]:
        """For the weights file."""
        teacher = self.work.held_out.teacher_accuracy
        found = {"agreement": self.agreement, "accuracy": self.accuracy, "teacher_accuracy": teacher}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def write(self, path: Path, tensors: Mapping[str, Tensor], scores: Mapping[str, Any]) -> None:
        said = {**self.work.metadata, **_measured({**self.scores(), **scores})}
        write_tensors(path, folded(self.work.student, tensors), said)

    def state(self) -> dict[str, Any]:
        return {
            "accuracy": [self.agreement, self.accuracy],
            "teacher": self.work.held_out.teacher_accuracy,
            "teacher_digest": self.teacher_digest,
            "images_digest": self.work.digest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("teacher_digest", self.teacher_digest) != self.teacher_digest:  # earlier versions did not store it
            raise InputError(
                f"the run was started with other weights of {self.work.teacher.name}: resume it with those, or give "
                "another --output"
            )
        if state.get("images_digest", self.work.digest) != self.work.digest:
            raise InputError("the run was started with other images: resume it with those, or give another output")
        self.agreement, self.accuracy = map(float, state["accuracy"])
        self.work.held_out.teacher_accuracy = float(state["teacher"])


def _measured(scores: Mapping[str, Any]) -> dict[str, str]:
    return {"metrics": json.dumps(scores)}


class Layers(nn.Module):
    """The new layers alone, each with an input of its own: `layers([(x, size), ...])`."""

    def __init__(self, layers: Sequence[GridAttention]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs: Sequence[tuple[Tensor, Size]]) -> list[Tensor]:
        return [layer(x, size) for layer, (x, size) in zip(self.layers, inputs, strict=True)]


class MatchTask(_Task):
    """Every new layer learns to give what the softmax layer gives for the teacher's own activations: all layers in
    parallel, from one pass of the teacher per batch. No labels are needed."""

    phase: PhaseName = "match"
    own_columns = ("worst_error",)  # of a layer: relative squared error of its output; the loss is their mean

    def __init__(self, recipe: Phase, work: Work, loaders: Loaders) -> None:
        super().__init__(recipe, work, loaders)
        self.model = Layers(list(work.layers.values()))

    def prepare(self, batch: Batch) -> tuple[tuple[Any, ...], Any]:
        images = self.fabric.to_device(batch.images)
        with self.fabric.autocast():
            seen = watch(self.work.teacher.model, list(self.work.layers), images)
        inputs = [(found.x.float(), found.size) for found in seen.values()]
        return (inputs,), [found.out for found in seen.values()]

    def loss(self, output: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        errors = self.errors(output, targets)
        return errors.mean(), [errors.detach().max()]

    def save(self, path: Path, tensors: Mapping[str, Tensor], *, steps: int, ema_decay: float | None) -> None:
        self.write(path, self.work.student.state_dict(), {"match_steps": steps})


class WithFeatures(nn.Module):
    """A model that gives its features beside its logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        final, maps = self.model.forward_intermediates(images)
        return self.model.forward_head(final), [*maps, final]


class DistilTask(_Task):
    """The whole model learns the teacher's logits and features; and labels, if the recipe says so."""

    phase: PhaseName = "distil"
    own_columns: tuple[str, ...] = ("logits_loss", "features_loss", "train_agreement")

    def __init__(self, recipe: Phase, work: Work, loaders: Loaders) -> None:
        if not work.teacher.outputs:
            self.own_columns = ("features_loss",)
        super().__init__(recipe, work, loaders)
        self.model = WithFeatures(work.student)
        self.teacher = WithFeatures(work.teacher.model)
        self.table = torch.tensor([*work.numbers, NO_LABEL])

    def prepare(self, batch: Batch) -> tuple[tuple[Any, ...], Any]:
        images, targets = self.fabric.to_device((batch.images, self.table[batch.targets]))
        with torch.no_grad(), self.fabric.autocast():
            logits, features = self.teacher(images)
        return (images,), (logits, features, targets)

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, list[Tensor]]:
        (logits, features), (teacher, expected, labels), weights = output, targets, self.recipe.convert
        errors = self.errors(features, expected).mean()
        if not self.work.teacher.outputs:
            return weights.features * errors, [errors.detach()]
        kl = divergence(logits, teacher, weights.temperature)
        loss = weights.logits * kl + weights.features * errors
        if weights.labels:
            loss = loss + weights.labels * labelled_loss(logits, labels, NO_LABEL)
        agree = (logits.argmax(-1) == teacher.argmax(-1)).double().mean()
        return loss, [kl.detach(), errors.detach(), agree]

    def whole(self, model: nn.Module) -> nn.Module:
        found: nn.Module = model.model  # type: ignore[assignment]
        return found

    def save(self, path: Path, tensors: Mapping[str, Tensor], *, steps: int, ema_decay: float | None) -> None:
        bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        self.write(path, bare, {"distil_steps": steps, **({} if ema_decay is None else {"ema_decay": ema_decay})})
