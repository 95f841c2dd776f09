"""metrics.csv: one row every few steps. A resumed run drops the rows after its checkpoint and writes them again."""

import csv
import io
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from laplacianformer._util.files import replacing, writing
from laplacianformer.attention import LaplacianAttention
from laplacianformer.inspect.diagnose import diagnose

COLUMNS = (
    "step",  # optimiser steps so far
    "epoch",  # epochs so far, with their fraction
    "loss",  # training loss, averaged since the row before, over all processes
    "accuracy",  # of the training batches (augmented; mixed labels count as their larger part)
    "lr",
    "gradient_norm",  # before clipping, averaged since the row before
    "images_per_second",  # of wall time since the row before, without the evaluation on held-out images
    "data_wait",  # share of that time in which the first process waited for images
    "kernel_mean",  # of the attention layers, on a few images of the batch: the mean,
    "residual",  # and the worst residual of the solves
    "validation_loss",  # held-out images; empty but at the end of an epoch
    "validation_accuracy",
)

DETECTION_COLUMNS = (
    *("step", "epoch", "loss"),  # the loss is the sum of those that follow
    *("loss_class", "loss_box", "loss_mask"),
    *("loss_proposal_class", "loss_proposal_box"),  # of Mask R-CNN's proposals
    *("lr", "gradient_norm", "images_per_second", "data_wait", "kernel_mean", "residual"),
    *("box_ap", "box_ap50", "box_ap75"),  # of held-out images, in percent; empty but after an evaluation
    *("mask_ap", "mask_ap50", "mask_ap75"),
)


class Metrics:
    """Rows go to the file as they come, and to TensorBoard where it is installed."""

    def __init__(self, folder: Path, after: int, *, tensorboard: bool, columns: tuple[str, ...] = COLUMNS) -> None:
        """Keep the rows of an earlier run up to step `after`."""
        self.path, self.columns = folder / "metrics.csv", columns
        kept = self._rows(after) if after else []
        with replacing(self.path) as file:
            file.write(_text(kept, columns, header=True))
        self.board = _board(folder, after) if tensorboard else None

    def _rows(self, after: int) -> list[dict[str, Any]]:
        whole = self.path.read_text().rpartition("\n")[0] if self.path.exists() else ""  # not a row cut short
        return [row for row in csv.DictReader(io.StringIO(whole)) if int(row["step"]) <= after]

    def add(self, row: dict[str, Any]) -> None:
        """On the disk when this returns, so that a checkpoint never knows more than the file."""
        before = self.path.stat().st_size
        with writing(self.path):
            try:
                with self.path.open("ab") as file:
                    file.write(_text([row], self.columns))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                os.truncate(self.path, before)
                raise
        if self.board is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, row["step"])

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def attention_state(model: nn.Module, images: Tensor) -> dict[str, float]:
    """The state of the attention on a few images; nothing for other token mixers."""
    if not any(isinstance(module, LaplacianAttention) for module in model.modules()):
        return {}
    layers = diagnose(model, images)
    return {
        "kernel_mean": sum(layer.kernel_mean for layer in layers) / len(layers),
        "residual": max(layer.residual for layer in layers),
    }


def _text(rows: list[dict[str, Any]], columns: tuple[str, ...], *, header: bool = False) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _board(folder: Path, after: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder / "tensorboard", purge_step=after + 1)
