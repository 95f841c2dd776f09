"""metrics.csv: one row every few steps. A resumed run drops the rows after its checkpoint and writes them again.

A checkpoint keeps the rows before it: where the file was damaged or changed meanwhile, they are restored from there.
"""

import csv
import io
import logging
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import replacing, writing
from laplacianformer.attention import LaplacianAttention
from laplacianformer.inspect._diagnose import diagnose

logger = logging.getLogger(__name__)


class Metrics:
    """Appends rows to the file, and to TensorBoard where it is installed."""

    def __init__(
        self, folder: Path, columns: tuple[str, ...], after: int, *, tensorboard: bool, recorded: str | None = None
    ) -> None:
        """Keep the rows of an earlier session up to step `after`.

        recorded: the text of the file up to there, from the checkpoint; None: an earlier version wrote the checkpoint.
        """
        self.path, self.columns = folder / "metrics.csv", columns
        kept = self._rows(after, recorded) if after else []
        self.text = _text(kept, columns, header=True)  # all rows, for checkpoints
        with replacing(self.path) as file:
            file.write(self.text.encode())
        self.board = _board(folder, after) if tensorboard else None

    def _rows(self, after: int, recorded: str | None) -> list[dict[str, Any]]:
        found = self.path.read_bytes().decode(errors="replace") if self.path.exists() else ""
        if recorded is not None and not found.startswith(recorded):
            logger.warning(
                "%s is not as it was written: its rows up to step %d are restored from the checkpoint", self.path, after
            )
        whole = found.rpartition("\n")[0] if recorded is None else recorded  # without a truncated row
        rows = list(csv.DictReader(io.StringIO(whole)))
        for line, row in enumerate(rows, 2):
            if not _is_row(row, self.columns):
                raise InputError(
                    f"{self.path} is damaged in line {line}: repair the line, or remove the file to continue without "
                    "the rows before"
                )
        return [row for row in rows if int(row["step"]) <= after]

    def add(self, row: dict[str, Any]) -> None:
        """The row is on the disk when this returns, so that a checkpoint is never ahead of the file."""
        before, text = self.path.stat().st_size, _text([row], self.columns)
        with writing(self.path):
            try:
                with self.path.open("ab") as file:
                    file.write(text.encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                os.truncate(self.path, before)
                raise
        self.text += text
        if self.board is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, row["step"])

    def close(self) -> None:
        """No more rows."""
        if self.board is not None:
            self.board.close()


def attention_state(model: nn.Module, images: Tensor) -> dict[str, float]:
    """The mean of the kernel over all layers, and the worst residual of the solves; nothing for other token mixers."""
    if not any(isinstance(module, LaplacianAttention) for module in model.modules()):
        return {}
    layers = diagnose(model, images)
    return {
        "kernel_mean": sum(layer.kernel_mean for layer in layers) / len(layers),
        "residual": max(layer.residual for layer in layers),
    }


def _text(rows: list[dict[str, Any]], columns: tuple[str, ...], *, header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _is_row(row: dict[Any, Any], columns: tuple[str, ...]) -> bool:
    """Whether it has a step, and a number or nothing in every column."""
    if not set(row) <= set(columns) or not (row.get("step") or "").isdecimal():
        return False
    try:
        return all(value == "" or float(value) is not None for value in row.values())
    except (TypeError, ValueError):
        return False


def _board(folder: Path, after: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder / "tensorboard", purge_step=after + 1)
