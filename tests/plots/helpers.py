"""What the tests of figures share."""

import csv
import os

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

COLUMNS = (
    "step", "epoch", "loss", "lr", "accuracy", "images_per_second", "gradient_norm", "kernel_mean", "residual",
    "validation_loss", "validation_accuracy",
)  # fmt: skip


def metrics(path, rows=40, columns=COLUMNS, **cells):
    """The metrics of a training run; every tenth row is an evaluation on held-out images."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for step in range(1, rows + 1):
            row = {"step": step, "epoch": step // 10, "loss": 2 / step, "lr": 1e-3, "accuracy": 1 - 1 / step}
            row |= {"images_per_second": 100, "gradient_norm": 1 / step, **cells}
            if step % 10 == 0:
                row = {"step": step, "epoch": step // 10, "validation_loss": 1 / step, "validation_accuracy": 0.9}
                row |= {"kernel_mean": 0.1, "residual": 0.01}
            writer.writerow(row)
    return path


def saved_figures(monkeypatch):
    """A list that figures are added to as they are saved."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: (figures.append(self), save(self, *args, **kwargs))
    )
    return figures


def check_png(path):
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 200
        assert np.asarray(image.convert("L")).std() > 5
    assert [name for name in os.listdir(path.parent) if "partial" in name] == []
