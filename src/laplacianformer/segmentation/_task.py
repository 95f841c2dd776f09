"""Train a segmenter from a recipe."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import write_json
from laplacianformer._util.tensor_files import write_tensors
from laplacianformer.data import Corrupt, mix, seed_all
from laplacianformer.segmentation._batches import SegmentationBatch, SegmentationLoaders, open_segmentation
from laplacianformer.segmentation._builders import BUILDERS, Segmenter
from laplacianformer.segmentation._classes import Preparation, find_classes
from laplacianformer.segmentation._labels import IGNORED
from laplacianformer.segmentation._recipe import SegmentationRecipe
from laplacianformer.segmentation._scores import PixelScores, Scores
from laplacianformer.segmentation._weights import segmenter_metadata
from laplacianformer.training._backbone_start import create_on_backbone, create_parameter_groups
from laplacianformer.training._feature_maps import padding_mask
from laplacianformer.training._loop import train_task
from laplacianformer.training._origin import origin
from laplacianformer.training._processes import gathered, in_first
from laplacianformer.training._report import Report, Table
from laplacianformer.training._session import Session

COLUMNS = (
    *("step", "epoch", "loss", "lr", "gradient_norm", "images_per_second", "data_wait"),
    *("kernel_mean", "residual", "query_dependence", "contribution"),
    *("mean_iou", "pixel_accuracy"),  # on held-out images, in percent; empty except after an evaluation
)


@dataclass(frozen=True)
class Result:
    """The end of a run. Scores are those of the last evaluation, in percent."""

    folder: Path
    weights: Path  # model.safetensors
    scores: Scores
    best_mean_iou: float
    steps: int
    seconds: float  # of this process, without what was done before a resume


def train(recipe: SegmentationRecipe, output: Path, *, resume: bool = False, report: Report | None = None) -> Result:
    """Train as the recipe says, into the folder `output`: metrics.csv, checkpoint.pt, scores.json and, at the end,
    model.safetensors (the averaged weights where the recipe keeps an average).

    Args:
        resume: continue from the checkpoint in the folder, if there is one.
        report: is told how the run goes; without it nothing is printed.
    """

    def opened(rank: int, world: int, _: Any) -> SegmentationLoaders:
        return open_segmentation(recipe, rank, world)

    task, done = train_task(recipe, output, opened, SegmentationTask, resume=resume, report=report)
    return Result(output, done.weights, task.scores, task.best, done.steps, done.seconds)


def pixel_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of the pixels that count; 0, with zero gradients, if none does.

    logits: (B, C, H, W); targets: (B, H, W), indices of classes or IGNORED.
    """
    targets = targets.long()
    total = F.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


class SegmentationTask:
    """The cross-entropy of pixels; intersection over union on the held-out images."""

    columns = COLUMNS
    numbers = ()
    lr_steps = ()

    def __init__(self, recipe: SegmentationRecipe, loaders: SegmentationLoaders, session: Session) -> None:
        self.recipe, self.loaders, self.fabric, self.output = recipe, loaders, session.fabric, session.output
        self.title, self.batches = f"{recipe.segmenter.name} on {recipe.segmenter.backbone}", loaders.train
        self.classes, self.images = loaders.held_out.labels.names, loaders.images
        data = recipe.data
        self.preparation = Preparation(data.mean, data.std, data.short_side, data.window, data.window_stride)
        self.scores = Scores(0.0, 0.0, {})
        self.best = 0.0  # mean IoU
        seed_all(mix(recipe.run.seed, 4))
        build = BUILDERS[recipe.segmenter.name]
        self.model: Segmenter = create_on_backbone("segmenter", recipe.segmenter, build, len(self.classes))
        # What the weights file will say, or the error of writing it, before the run and not after it.
        self.metadata = segmenter_metadata(
            session.weights, self.model, loaders.held_out.labels, self.preparation, origin(recipe, {})
        )

    def parameters(self) -> list[dict[str, Any]]:
        return create_parameter_groups(self.model, self.model.maps, self.recipe.optimise)

    def prepare(self, batch: SegmentationBatch) -> tuple[tuple[Any, ...], Any]:
        images, targets, sizes = self.fabric.to_device((batch.images, batch.targets, batch.sizes))
        mask = padding_mask(sizes, images.shape[-2:])
        images = self.preparation.normalised(images)
        return ((images,) if mask is None else (images * mask[:, None], mask)), targets

    def loss(self, output: Tensor, targets: Tensor) -> tuple[Tensor, list[Tensor]]:
        return pixel_loss(output, targets), []

    def evaluation_due(self, epoch: int) -> bool:
        return self.recipe.run.evaluation_due(epoch, self.recipe.optimise.epochs)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Scores over the images of all processes."""
        counted = PixelScores(self.classes, self.fabric.device)
        unreadable: list[str] = []
        problem = ""
        for _, image, classes, reason in self.loaders.val:
            if image is None:
                unreadable.append(reason)
                continue
            try:
                with self.fabric.autocast():
                    found = find_classes(model, self.fabric.to_device(image), self.preparation)
            except InputError as error:
                problem = str(error)
                break
            counted.add(found, self.fabric.to_device(classes))
        everything = gathered(self.fabric, (unreadable, problem))
        if problem := next((problem for _, problem in everything if problem), ""):
            raise InputError(problem)  # in all processes
        unreadable = [line for lines, _ in everything for line in lines]
        Corrupt(self.recipe.data.corrupt_limit).add(unreadable, len(self.loaders.held_out))
        self.scores = counted.compute()
        self.best = max(self.best, self.scores.mean_iou)
        in_first(self.fabric, lambda: write_json(self.output / "scores.json", asdict(self.scores)))
        return self._columns()

    def _columns(self) -> dict[str, float]:
        return {"mean_iou": self.scores.mean_iou, "pixel_accuracy": self.scores.pixel_accuracy}

    def attention_input(self, batch: SegmentationBatch) -> tuple[nn.Module, Tensor]:
        index = int(batch.sizes.prod(1).argmax())  # the one with the least padding
        height, width = batch.sizes[index].tolist()
        image = self.fabric.to_device(batch.images[index : index + 1, :, :height, :width])
        return self.model.eval(), self.preparation.normalised(image)

    def line(self, row: Mapping[str, Any]) -> str:
        return (
            f"epoch {row['epoch']:.0f} of {self.recipe.optimise.epochs}: loss {row['loss']:.3f}, mean IoU "
            f"{self.scores.mean_iou:.1f} %, {row['images_per_second']} images/s"
        )

    def summary(self) -> list[tuple[str, str]]:
        return [
            ("mean IoU", f"{self.scores.mean_iou:.1f} %"),
            ("pixel accuracy", f"{self.scores.pixel_accuracy:.1f} %"),
            ("best mean IoU of all evaluations", f"{self.best:.1f} %"),
        ]

    def tables(self) -> list[Table]:
        return [Table("Held-out images", ("class", "IoU %"), self.scores.rows())]

    def save(self, path: Path, tensors: Mapping[str, Tensor], *, steps: int, ema_decay: float | None) -> None:
        write_tensors(path, tensors, {**self.metadata, **origin(self.recipe, {**self._columns(), "steps": steps})})

    def state(self) -> dict[str, Any]:
        return {"scores": asdict(self.scores), "best": self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        stored = state["scores"]
        by_class = {str(name): None if value is None else float(value) for name, value in stored["iou"].items()}
        self.scores = Scores(float(stored["mean_iou"]), float(stored["pixel_accuracy"]), by_class)
        self.best = float(state["best"])
