"""metrics.csv: one row every few steps. A resumed run drops the rows after its checkpoint and writes them again.

A checkpoint keeps the rows before it: where the file was damaged or changed meanwhile, they are restored from there.
"""

import csv
import io
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import open_regular, replacing, writing
from laplacianformer._util.limits import overflows, shown
from laplacianformer.attention import LaplacianAttention
from laplacianformer.inspect._diagnose import Diagnosis, LayerDiagnosis, diagnose
from laplacianformer.training._report import Table

logger = logging.getLogger(__name__)

_SHOWN = ("kernel_mean", "query_dependence", "contribution")  # of every attention layer


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
        found = self._written()
        if recorded is not None and not found.startswith(recorded):
            logger.warning(
                "%s is not as it was written: its rows up to step %d are restored from the checkpoint", self.path, after
            )
        whole = found.rpartition("\n")[0] if recorded is None else recorded  # without a truncated row
        try:
            rows = list(csv.DictReader(io.StringIO(whole)))
        except csv.Error as error:
            raise InputError(f"{self.path} is damaged ({error}): remove it to continue without its rows") from None
        for line, row in enumerate(rows, 2):
            large = [name for name, value in row.items() if isinstance(value, str) and overflows(value)]
            if large:
                raise InputError(
                    f"{self.path}: {large[0]} in line {line} is larger than any float, {shown(row[large[0]])}: repair "
                    "the line, or remove the file to continue without the rows before"
                )
            if not _is_row(row, self.columns):
                raise InputError(
                    f"{self.path} is damaged in line {line}: repair the line, or remove the file to continue without "
                    "the rows before"
                )
        return [row for row in rows if int(row["step"]) <= after]

    def _written(self) -> str:
        if not self.path.exists():
            return ""
        try:
            with open_regular(self.path) as file:
                return file.read().decode(errors="replace")
        except OSError as error:
            raise InputError(f"can't read {self.path}: {error.strerror or error}") from None

    def add(self, row: dict[str, Any], layers: Sequence[LayerDiagnosis] = ()) -> None:
        """The row is on the disk when this returns, so that a checkpoint is never ahead of the file.

        layers: of the attention; TensorBoard shows each of them.
        """
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
            for layer in layers:
                for name in _SHOWN:
                    self.board.add_scalar(f"{name}/{layer.layer}", getattr(layer, name), row["step"])

    def close(self) -> None:
        """No more rows."""
        if self.board is not None:
            self.board.close()


def diagnosed(model: nn.Module, images: Tensor) -> Diagnosis:
    """The state of every attention layer; empty for other token mixers."""
    has_layers = any(isinstance(module, LaplacianAttention) for module in model.modules())
    return diagnose(model, images) if has_layers else Diagnosis()


def attention_columns(layers: Diagnosis) -> dict[str, float]:
    """The means of a row over all layers, and the worst residual of the solves; nothing without layers."""
    if not layers:
        return {}
    means = {name: sum(getattr(layer, name) for layer in layers) / len(layers) for name in _SHOWN}
    return {**means, "residual": max(layer.residual for layer in layers)}


def attention_table(layers: Diagnosis) -> Table:
    """Every layer at the last row, for people."""
    header = ("layer", *(name.replace("_", " ") for name in _SHOWN))
    rows = [(layer.layer, *(f"{getattr(layer, name):.3g}" for name in _SHOWN)) for layer in layers]
    return Table("Attention at the last step", header, tuple(rows))


def _text(rows: list[dict[str, Any]], columns: tuple[str, ...], *, header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _is_row(row: dict[Any, Any], columns: tuple[str, ...]) -> bool:
    """Whether it has a step, and a number or nothing in every column."""
    if not set(row) <= set(columns) or not re.fullmatch(r"[0-9]{1,18}", row.get("step") or ""):
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
