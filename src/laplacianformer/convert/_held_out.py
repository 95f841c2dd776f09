"""How near a model is to its teacher on held-out images: classes that agree, and accuracy where labels are known."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from laplacianformer.data import NO_LABEL, Batch, Corrupt
from laplacianformer.training._finite import stop_evaluation
from laplacianformer.training._processes import in_each


class HeldOut:
    """Held-out batches, and what the teacher says about them, computed when it is first needed.

    Args:
        teacher: in evaluation mode, on the device.
        batches: the same in every pass.
        numbers: for each label of the data the output that it stands for, or NO_LABEL.
        corrupt_limit: fraction of the images that may be unreadable.
    """

    def __init__(
        self, fabric: Any, teacher: nn.Module, batches: Iterable[Batch], numbers: Sequence[int], corrupt_limit: float
    ) -> None:
        self.fabric, self.teacher, self.batches, self.corrupt_limit = fabric, teacher, batches, corrupt_limit
        self.numbers = torch.tensor([*numbers, NO_LABEL])  # NO_LABEL is -1, the last
        self._classes: list[Tensor] | None = None
        self.teacher_accuracy = float("nan")

    def scores(self, model: nn.Module) -> tuple[float, float]:
        """Agreement with the teacher, and accuracy (NaN without labels), over the batches of all processes."""
        if self._classes is None:
            self._classes = []
            _, self.teacher_accuracy = self._scores(self.teacher, self._classes)
        return self._scores(model, None)

    @torch.no_grad()
    def _scores(self, model: nn.Module, found: list[Tensor] | None) -> tuple[float, float]:
        """found: where to keep the classes, instead of comparing them."""
        totals = torch.zeros(5, dtype=torch.float64)
        unreadable: list[str] = []
        for index, batch in enumerate(self.batches):
            unreadable += batch.corrupt
            with self.fabric.autocast():
                logits = model(self.fabric.to_device(batch.images)).float()
            classes, labels = logits.argmax(-1).cpu(), self.numbers[batch.targets]
            if found is not None:
                found.append(classes)
            there, labelled = batch.targets != NO_LABEL, labels != NO_LABEL
            agree = (classes == cast("list[Tensor]", self._classes)[index]) & there
            right, not_finite = (classes == labels) & labelled, ~logits.isfinite()
            totals += torch.stack([part.sum().cpu() for part in (agree, there, right, labelled, not_finite)]).double()
        seen = int(totals[1]) + len(unreadable)
        in_each(self.fabric, lambda: Corrupt(self.corrupt_limit).add(unreadable, seen))
        reduced = cast(Tensor, self.fabric.all_reduce(totals, reduce_op="sum"))
        agreed, images, correct, labels_there, infinite = reduced.tolist()
        if infinite:
            stop_evaluation(self.fabric, model, ((self.fabric.to_device(batch.images),) for batch in self.batches))
        return agreed / max(1.0, images), correct / labels_there if labels_there else float("nan")
