"""metrics.csv: one row every few steps. A resumed run drops the rows after its checkpoint and writes them again."""

import csv
import io
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from laplacianformer._util.files import replacing, writing
from laplacianformer.attention import LaplacianAttention
from laplacianformer.inspect._diagnose import diagnose


class Metrics:
    """Appends rows to the file, and to TensorBoard where it is installed."""

    def __init__(self, folder: Path, columns: tuple[str, ...], after: int, *, tensorboard: bool) -> None:
        """Keep the rows of an earlier session up to step `after`."""
        self.path, self.columns = folder / "metrics.csv", columns
        kept = self._rows(after) if after else []
        with replacing(self.path) as file:
            file.write(_text(kept, columns, header=True))
        self.board = _board(folder, after) if tensorboard else None

    def _rows(self, after: int) -> list[dict[str, Any]]:
        whole = self.path.read_text().rpartition("\n")[0] if self.path.exists() else ""  # without a truncated row
        return [row for row in csv.DictReader(io.StringIO(whole)) if int(row["step"]) <= after]

    def add(self, row: dict[str, Any]) -> None:
        """The row is on the disk when this returns, so that a checkpoint is never ahead of the file."""
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
