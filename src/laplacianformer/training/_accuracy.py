"""Loss and accuracy on held-out data, for tasks whose targets are classes."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer.data import NO_LABEL, Corrupt
from laplacianformer.training._finite import stop_evaluation
from laplacianformer.training._processes import in_each


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
