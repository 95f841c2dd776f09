"""Train a detector from a recipe."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from rich.table import Table
from torch import Tensor, distributed, nn

from laplacianformer._util.files import write_json
from laplacianformer.data import Corrupt
from laplacianformer.detection.batches import DetectionBatch, DetectionLoaders, open_detection
from laplacianformer.detection.coco import CocoImages
from laplacianformer.detection.find import find_objects
from laplacianformer.detection.scores import Scores, as_results, coco_scores, flat, percent, table
from laplacianformer.recipes import DetectionRecipe
from laplacianformer.training import loop as engine
from laplacianformer.training import parts
from laplacianformer.training import weights as export
from laplacianformer.training.metrics import DETECTION_COLUMNS
from laplacianformer.training.processes import in_each, in_first

# Columns, and what torchvision's detectors call the losses in them. What a detector doesn't have is 0.
LOSSES = {
    "loss_class": ("loss_classifier", "classification"),
    "loss_box": ("loss_box_reg", "bbox_regression"),
    "loss_mask": ("loss_mask",),
    "loss_proposal_class": ("loss_objectness",),
    "loss_proposal_box": ("loss_rpn_box_reg",),
}
IN_ROWS = ("AP", "AP50", "AP75")


class AsTheyAre:
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
    """What came out. Scores are of the last evaluation, in percent."""

    folder: Path
    weights: Path  # model.safetensors
    scores: Scores
    best_box_ap: float
    steps: int
    seconds: float  # of this process, not of what was done before a resume


def train(recipe: DetectionRecipe, output: Path, *, resume: bool = False) -> Result:
    """Train as the recipe says, into the folder `output`: metrics.csv, checkpoint.pt, scores.json and, at the end,
    model.safetensors (the averaged weights where the recipe keeps an average)."""
    fabric = engine.start(recipe.run, output, resume=resume)
    rank, world = fabric.global_rank, fabric.world_size
    loaders = in_each(fabric, lambda: open_detection(recipe, rank, world))
    return cast(Result, Training(recipe, output, fabric, loaders, resume=resume).run())


class Training(engine.Training):
    """The sum of torchvision's losses; COCO's numbers on the held-out images."""

    recipe: DetectionRecipe
    loaders: DetectionLoaders
    columns = DETECTION_COLUMNS
    averaged = ("loss", *LOSSES, "gradient_norm")

    def __init__(
        self, recipe: DetectionRecipe, output: Path, fabric: Fabric, loaders: DetectionLoaders, *, resume: bool
    ) -> None:
        self.title = f"{recipe.detector.name} on {recipe.detector.backbone}"
        self.scores: Scores = {}
        self.best = 0.0  # box AP
        super().__init__(recipe, output, fabric, loaders, resume=resume)

    def create_model(self) -> nn.Module:
        return parts.create_detector(self.recipe, len(self.loaders.classes))

    def create_optimiser(self) -> torch.optim.Optimizer:
        return parts.create_detector_optimiser(self.bare, self.recipe.optimise)

    def prepare(self, batch: DetectionBatch) -> tuple[tuple[Any, ...], Any]:
        images, targets = self.fabric.to_device((batch.images, batch.targets))
        return (AsTheyAre([image / 255 for image in images]), AsTheyAre(targets)), None

    def loss(self, output: dict[str, Tensor], targets: None) -> tuple[Tensor, list[Tensor]]:
        total = torch.stack(list(output.values())).sum()
        nothing = torch.zeros_like(total)
        found = [next((output[name] for name in names if name in output), nothing) for names in LOSSES.values()]
        return total, [loss.detach() for loss in found]

    def evaluation_due(self) -> bool:
        epoch = self.step // self.steps_an_epoch
        return epoch % self.recipe.run.eval_epochs == 0 or self.step == self.steps

    def evaluate(self) -> dict[str, float]:
        """COCO's numbers, of the pictures of all processes."""
        model, images = self.ready_to_evaluate(), self.loaders.held_out
        results: list[dict[str, Any]] = []
        unreadable: dict[int, str] = {}
        for index, picture, reason in self.loaders.val:
            if picture is None:
                unreadable[index] = reason
                continue
            with self.fabric.autocast():
                found = find_objects(model, self.fabric.to_device(picture))
            results += as_results(images, index, found)
        everything = self.gathered((results, unreadable))
        unreadable = {index: reason for _, part in everything for index, reason in part.items()}
        Corrupt(self.corrupt.limit).add(unreadable.values(), len(images))
        results = [result for part, _ in everything for result in part]
        self.scores = in_first(self.fabric, lambda: self.scored(images, results, unreadable))
        columns = flat(self.scores, IN_ROWS)
        self.best = max(self.best, columns["box_ap"])
        return columns

    def scored(self, images: CocoImages, results: list[dict[str, Any]], unreadable: Mapping[int, str]) -> Scores:
        scores = coco_scores(images, results, unreadable)
        write_json(self.output / "scores.json", scores)
        return scores

    def gathered(self, part: Any) -> list[Any]:
        """The parts of all processes, in all of them."""
        if self.fabric.world_size == 1:
            return [part]
        parts: list[Any] = [None] * self.fabric.world_size
        distributed.all_gather_object(parts, part)
        return parts

    def looked_at(self, batch: DetectionBatch) -> tuple[nn.Module, Tensor]:
        model: Any = self.bare.eval()
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
        return [table(self.scores, "Held-out images")]

    def result(self, seconds: float) -> Result:
        return Result(self.output, self.weights, self.scores, self.best, self.step, seconds)

    def check_export(self) -> None:
        export.check_detector(self.weights, self.bare, self.recipe, self.loaders.held_out)

    def export(self, state: Mapping[str, Any]) -> None:
        numbers = {**flat(self.scores, IN_ROWS), "steps": self.step}
        export.export_detector(self.weights, state, self.recipe, self.loaders.held_out, numbers)

    def scores_state(self) -> dict[str, Any]:
        return {"scores": self.scores, "best": self.best}

    def restore_scores(self, state: Mapping[str, Any]) -> None:
        self.scores, self.best = state["scores"], state["best"]
