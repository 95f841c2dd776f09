"""How near a model is to its teacher on held-out images: classes that agree, and accuracy where labels are known.

Models without classes (DINO) are compared by their pooled features: the mean cosine.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from laplacianformer.convert._teacher import TeacherModel
from laplacianformer.data import NO_LABEL, Batch, Corrupt
from laplacianformer.training._finite import stop_evaluation
from laplacianformer.training._processes import in_each

_ENOUGH = 100  # labelled images from which on an accuracy near chance means something
_DEVIATIONS = 3.0


class HeldOut:
    """Held-out batches, and what the teacher says about them, computed when it is first needed.

    Args:
        teacher: on the device.
        batches: the same in every pass.
        numbers: for each label of the data the output that it stands for, or NO_LABEL.
        corrupt_limit: fraction of the images that may be unreadable.
    """

    def __init__(
        self, fabric: Any, teacher: TeacherModel, batches: Iterable[Batch], numbers: Sequence[int], corrupt_limit: float
    ) -> None:
        self.fabric, self.teacher, self.batches, self.corrupt_limit = fabric, teacher, batches, corrupt_limit
        self.numbers = torch.tensor([*numbers, NO_LABEL])  # NO_LABEL is -1, the last
        self._expected: list[Tensor] | None = None  # classes, or features
        self.teacher_accuracy = float("nan")

    def scores(self, model: nn.Module) -> tuple[float, float]:
        """Agreement with the teacher, and accuracy (NaN without labels), over the batches of all processes."""
        if self._expected is None:
            self._expected = []
            _, self.teacher_accuracy = self._scores(self.teacher.model, keep=True)
        return self._scores(model)

    @torch.no_grad()
    def _scores(self, model: nn.Module, *, keep: bool = False) -> tuple[float, float]:
        """keep: these are the outputs that others are compared with."""
        expected = cast("list[Tensor]", self._expected)
        totals = torch.zeros(5, dtype=torch.float64)
        unreadable: list[str] = []
        for index, batch in enumerate(self.batches):
            unreadable += batch.corrupt
            with self.fabric.autocast():
                logits = model(self.fabric.to_device(batch.images)).float()
            classes, labels = logits.argmax(-1).cpu(), self.numbers[batch.targets]
            there, labelled = batch.targets != NO_LABEL, labels != NO_LABEL
            if keep:
                expected.append(classes if self.teacher.outputs else logits.cpu())
            if self.teacher.outputs:
                agree = (classes == expected[index]) & there
            else:
                agree = torch.cosine_similarity(logits.cpu(), expected[index]) * there
            right, not_finite = (classes == labels) & labelled, ~logits.isfinite()
            totals += torch.stack([part.sum().cpu().double() for part in (agree, there, right, labelled, not_finite)])
        seen = int(totals[1]) + len(unreadable)
        in_each(self.fabric, lambda: Corrupt(self.corrupt_limit).add(unreadable, seen))
        reduced = cast(Tensor, self.fabric.all_reduce(totals, reduce_op="sum"))
        agreed, images, correct, labels_there, infinite = reduced.tolist()
        if infinite:
            stop_evaluation(self.fabric, model, ((self.fabric.to_device(batch.images),) for batch in self.batches))
        if keep and self.fabric.is_global_zero:
            self._warn(int(correct), int(labels_there))
        return agreed / max(1.0, images), correct / labels_there if labels_there else float("nan")

    def _warn(self, correct: int, labelled: int) -> None:
        """Warn about a teacher that is hardly ever right: its outputs may not be in the order of the data's classes."""
        if labelled < _ENOUGH:
            return
        chance, accuracy = 1 / self.teacher.outputs, correct / labelled
        if accuracy <= chance + _DEVIATIONS * math.sqrt(chance * (1 - chance) / labelled):
            warnings.warn(
                f"the teacher {self.teacher.name} is right on {accuracy:.2%} of {labelled} labelled held-out images, "
                f"where chance is {chance:.2%}: the names of its outputs may be in another order than the folders, and "
                "accuracies mean nothing then; give --classes FILE (in Python classes=[...])",
                stacklevel=2,
            )
