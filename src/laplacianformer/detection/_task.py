"""Train a detector from a recipe."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import write_json
from laplacianformer._util.tensor_files import write_tensors
from laplacianformer.data import Corrupt, mix, seed_all
from laplacianformer.detection._batches import DetectionBatch, DetectionLoaders, open_detection
from laplacianformer.detection._builders import BUILDERS
from laplacianformer.detection._find import find_objects
from laplacianformer.detection._recipe import DetectionRecipe
from laplacianformer.detection._scores import Scores, as_results, coco_scores, flat, percent, rows
from laplacianformer.detection._weights import detector_metadata
from laplacianformer.training._backbone_start import create_on_backbone, create_parameter_groups
from laplacianformer.training._loop import train_task
from laplacianformer.training._origin import origin
from laplacianformer.training._processes import gathered, in_first
from laplacianformer.training._report import Report, Table
from laplacianformer.training._session import Session

COLUMNS = (
    *("step", "epoch", "loss"),  # the loss is the sum of those that follow
    *("loss_class", "loss_box", "loss_mask"),
    *("loss_proposal_class", "loss_proposal_box"),  # of Mask R-CNN's proposals
    *("lr", "gradient_norm", "images_per_second", "data_wait"),
    *("kernel_mean", "residual", "query_dependence", "contribution"),
    *("box_ap", "box_ap50", "box_ap75"),  # on held-out images, in percent; empty except after an evaluation
    *("mask_ap", "mask_ap50", "mask_ap75"),
)
# Columns, and what torchvision's detectors call the losses in them. A loss that a detector doesn't have is 0.
_LOSSES = {
    "loss_class": ("loss_classifier", "classification"),
    "loss_box": ("loss_box_reg", "bbox_regression"),
    "loss_mask": ("loss_mask",),
    "loss_proposal_class": ("loss_objectness",),
    "loss_proposal_box": ("loss_rpn_box_reg",),
}
_IN_ROWS = ("AP", "AP50", "AP75")


class _OpaqueList:
    """A list that Fabric does not look into: for bfloat16 it would round the corners of boxes."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@dataclass(frozen=True)
class Result:
    """The end of a run. Scores are those of the last evaluation, in percent."""

    folder: Path
    weights: Path  # model.safetensors
    scores: Scores
    best_box_ap: float
    steps: int
    seconds: float  # of this process, without what was done before a resume


def train(recipe: DetectionRecipe, output: Path, *, resume: bool = False, report: Report | None = None) -> Result:
    """Train as the recipe says, into the folder `output`: metrics.csv, checkpoint.pt, scores.json and, at the end,
    model.safetensors (the averaged weights where the recipe keeps an average).

    Args:
        resume: continue from the checkpoint in the folder, if there is one.
        report: is told how the run goes; without it nothing is printed.
    """

    def opened(rank: int, world: int, _: Any) -> DetectionLoaders:
        return open_detection(recipe, rank, world)

    task, done = train_task(recipe, output, opened, DetectionTask, resume=resume, report=report)
    return Result(output, done.weights, task.scores, task.best, done.steps, done.seconds)


def create_detector(recipe: DetectionRecipe, num_classes: int) -> Any:
    """The detector that a recipe asks for, with the weights that training starts from."""
    section, data = recipe.detector, recipe.data
    sides: dict[str, Any] = {"short_side": data.short_side, "long_side": data.long_side}
    build = BUILDERS[section.name]
    return create_on_backbone("detector", section, build, num_classes, **sides, mean=data.mean, std=data.std)


class DetectionTask:
    """The sum of torchvision's losses; COCO's numbers on the held-out images."""

    columns = COLUMNS
    numbers = tuple(_LOSSES)

    def __init__(self, recipe: DetectionRecipe, loaders: DetectionLoaders, session: Session) -> None:
        self.recipe, self.loaders, self.fabric, self.output = recipe, loaders, session.fabric, session.output
        self.title, self.batches = f"{recipe.detector.name} on {recipe.detector.backbone}", loaders.train
        self.classes, self.images, self.lr_steps = loaders.classes, loaders.images, recipe.optimise.lr_steps
        self.scores: Scores = {}
        self.best = 0.0  # box AP
        seed_all(mix(recipe.run.seed, 4))
        self.model = create_detector(recipe, len(loaders.classes))
        # What the weights file will say, or the error of writing it, before the run and not after it.
        self.metadata = detector_metadata(
            session.weights, self.model, self.classes, loaders.held_out.category_ids, origin(recipe, {})
        )

    def parameters(self) -> list[dict[str, Any]]:
        return create_parameter_groups(self.model, self.model.backbone.maps, self.recipe.optimise)

    def prepare(self, batch: DetectionBatch) -> tuple[tuple[Any, ...], Any]:
        images, targets = self.fabric.to_device((batch.images, batch.targets))
        return (_OpaqueList([image / 255 for image in images]), _OpaqueList(targets)), None

    def loss(self, output: dict[str, Tensor], targets: None) -> tuple[Tensor, list[Tensor]]:
        total = torch.stack(list(output.values())).sum()
        nothing = torch.zeros_like(total)
        found = [next((output[name] for name in names if name in output), nothing) for names in _LOSSES.values()]
        return total, [loss.detach() for loss in found]

    def evaluation_due(self, epoch: int) -> bool:
        return self.recipe.run.evaluation_due(epoch, self.recipe.optimise.epochs)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """COCO's numbers over the images of all processes."""
        images = self.loaders.held_out
        results: list[dict[str, Any]] = []
        unreadable: dict[int, str] = {}
        problem = ""
        for index, image, reason in self.loaders.val:
            if image is None:
                unreadable[index] = reason
                continue
            try:
                with self.fabric.autocast():
                    found = find_objects(model, self.fabric.to_device(image))
            except InputError as error:
                problem = str(error)
                break
            results += as_results(images, index, found)
        everything = gathered(self.fabric, (results, unreadable, problem))
        if problem := next((problem for *_, problem in everything if problem), ""):
            raise InputError(problem)  # in all processes
        unreadable = {index: reason for _, part, _ in everything for index, reason in part.items()}
        Corrupt(self.recipe.data.corrupt_limit).add(unreadable.values(), len(images))
        results = [result for part, *_ in everything for result in part]
        self.scores = in_first(self.fabric, lambda: self._scored(results, unreadable))
        columns = flat(self.scores, _IN_ROWS)
        self.best = max(self.best, columns["box_ap"])
        return columns

    def _scored(self, results: list[dict[str, Any]], unreadable: Mapping[int, str]) -> Scores:
        scores = coco_scores(self.loaders.held_out, results, unreadable)
        write_json(self.output / "scores.json", scores)
        return scores

    def attention_input(self, batch: DetectionBatch) -> tuple[nn.Module, Tensor]:
        model = self.model.eval()
        image = self.fabric.to_device(batch.images[0]) / 255
        return model.backbone, model.transform([image])[0].tensors

    def line(self, row: Mapping[str, Any]) -> str:
        numbers = ", ".join(f"{kind} AP {percent(numbers['AP'])}" for kind, numbers in self.scores.items())
        return (
            f"epoch {row['epoch']:.0f} of {self.recipe.optimise.epochs}: loss {row['loss']:.3f}, {numbers}, "
            f"{row['images_per_second']} images/s"
        )

    def summary(self) -> list[tuple[str, str]]:
        return [("best box AP of all evaluations", percent(self.best))]

    def tables(self) -> list[Table]:
        return [Table("Held-out images", ("%", *self.scores), rows(self.scores))]

    def save(self, path: Path, tensors: Mapping[str, Tensor], *, steps: int, ema_decay: float | None) -> None:
        scores = {**flat(self.scores, _IN_ROWS), "steps": steps}
        write_tensors(path, tensors, {**self.metadata, **origin(self.recipe, scores)})

    def state(self) -> dict[str, Any]:
        return {"scores": self.scores, "best": self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        stored: Scores = state["scores"]
        self.scores = {
            str(kind): {str(name): None if value is None else float(value) for name, value in numbers.items()}
            for kind, numbers in stored.items()
        }
        self.best = float(state["best"])
