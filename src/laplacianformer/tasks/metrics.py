"""metrics.csv: one row every few steps. A resumed run drops the rows after its checkpoint and writes them again."""

import csv
import io
import os
from pathlib import Path
from typing import Any

from laplacianformer.errors import InputError
from laplacianformer.tasks.checkpoint import write_whole

COLUMNS = (
    "step",  # optimiser steps so far
    "epoch",  # epochs so far, with their fraction
    "loss",  # training loss, averaged since the row before
    "lr",
    "gradient_norm",  # before clipping, averaged since the row before
    "images_per_second",
    "kernel_mean",  # of the attention layers, on a few images of the batch: the mean,
    "residual",  # and the worst residual of the solves
    "val_loss",  # held-out images; empty but at the end of an epoch
    "accuracy",
)


class Metrics:
    """Rows go to the file as they come."""

    def __init__(self, folder: Path, after: int, tensorboard: bool = False) -> None:
        """Keep the rows of an earlier run up to step `after`."""
        self.path = folder / "metrics.csv"
        write_whole(self.path, self._text(self._kept(after)).encode())
        self.board = _board(folder, after) if tensorboard else None

    def _kept(self, after: int) -> list[dict[str, Any]]:
        if after == 0 or not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return [row for row in csv.DictReader(file) if int(row["step"]) <= after]

    @staticmethod
    def _text(rows: list[dict[str, Any]], header: bool = True) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def add(self, row: dict[str, Any]) -> None:
        """On the disk when this returns, so that a checkpoint never knows more than the file."""
        try:
            with self.path.open("a") as file:
                file.write(self._text([row], header=False))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"can't write {self.path}: {error.strerror}") from None
        if self.board is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, row["step"])

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def _board(folder: Path, after: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder / "tensorboard", purge_step=after + 1)
