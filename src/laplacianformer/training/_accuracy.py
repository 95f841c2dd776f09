"""Loss and accuracy on held-out data, for tasks whose targets are classes."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer._util.tensor_files import write_tensors
from laplacianformer.data import NO_LABEL, Corrupt
from laplacianformer.training._finite import stop_evaluation
from laplacianformer.training._origin import origin
from laplacianformer.training._processes import in_each
from laplacianformer.training._report import Table


class AccuracyTask:
    """What tasks whose targets are classes have in common: everything about held-out data. Subclasses add the rest of
    `Task`, the attributes below, and `plain`."""

    what: str  # is classified: images, for example
    recipe: Any
    fabric: Any
    loaders: Any  # with the held-out batches in `val`
    metadata: dict[str, str]  # of the weights file, without what the training adds
    accuracy = best = 0.0  # of the last evaluation, and of all

    def plain(self, batch: Any) -> tuple[tuple[Any, ...], Tensor]:
        """Inputs of the model and targets of a held-out batch, on the device."""
        raise NotImplementedError

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss and accuracy."""
        limit = self.recipe.data.corrupt_limit
        loss, self.accuracy = held_out_accuracy(self.fabric, model, self.loaders.val, self.plain, limit)
        self.best = max(self.best, self.accuracy)
        return {"validation_loss": loss, "validation_accuracy": self.accuracy}

    def line(self, row: Mapping[str, Any]) -> str:
        return (
            f"epoch {row['epoch']:.0f} of {self.recipe.optimise.epochs}: loss {row['loss']:.3f}, "
            f"held out {row['validation_loss']:.3f}, accuracy {row['validation_accuracy']:.2%}, "
            f"{row['images_per_second']} {self.what}/s"
        )

    def summary(self) -> list[tuple[str, str]]:
        return [
            (f"accuracy on held-out {self.what}", f"{self.accuracy:.2%}"),
            ("best of all evaluations", f"{self.best:.2%}"),
        ]

    def tables(self) -> list[Table]:
        return []

    def save(self, path: Path, tensors: Mapping[str, Tensor], *, steps: int, ema_decay: float | None) -> None:
        scores = {"accuracy": self.accuracy, "best_accuracy": self.best, "steps": steps}
        if ema_decay is not None:
            scores["ema_decay"] = ema_decay
        write_tensors(path, tensors, {**self.metadata, **origin(self.recipe, scores)})

    def state(self) -> dict[str, Any]:
        return {"accuracy": [self.accuracy, self.best]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.accuracy, self.best = map(float, state["accuracy"])


@torch.no_grad()
def held_out_accuracy(
    fabric: Any,
    model: nn.Module,
    batches: Iterable[Any],
    prepare: Callable[[Any], tuple[tuple[Any, ...], Tensor]],
    corrupt_limit: float,
) -> tuple[float, float]:
    """Mean loss and accuracy over the batches of all processes.

    Args:
        prepare: the inputs of the model and the targets of a batch, on the device.
        corrupt_limit: fraction of samples that may be unreadable.
    """
    totals = torch.zeros(4, dtype=torch.float64, device=fabric.device)
    unreadable: list[str] = []
    for batch in batches:
        unreadable += batch.corrupt
        inputs, targets = prepare(batch)
        with fabric.autocast():
            logits = model(*inputs).float()
        right = (logits.argmax(1) == targets).sum()
        loss = F.cross_entropy(logits, targets, reduction="sum", ignore_index=NO_LABEL)
        totals += torch.stack([right, loss, (targets != NO_LABEL).sum(), (~logits.isfinite()).sum()]).double()
    seen = int(totals[2]) + len(unreadable)
    in_each(fabric, lambda: Corrupt(corrupt_limit).add(unreadable, seen))
    right, loss, count, not_finite = cast(Tensor, fabric.all_reduce(totals, reduce_op="sum")).tolist()
    if not_finite:
        stop_evaluation(fabric, model, (prepare(batch)[0] for batch in batches))
    return loss / max(1, count), right / max(1, count)
