"""One model with three kinds of attention and with none, all else equal: its accuracy after the same training."""

from collections.abc import Sequence
from pathlib import Path

from laplacianformer.experiments import variants
from laplacianformer.experiments.drawing import banded, tidy
from laplacianformer.experiments.frame import Outcome, Settings, Verdict
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.sweep import curves
from laplacianformer.experiments.trainings import (
    CONTROLS,
    DEFAULT,
    PLAIN,
    compared,
    other_mixer,
    runs_of,
    train,
    with_arguments,
)
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "beyond the paper"
CLAIM: str = (
    "With everything else equal, the Laplacian kernel is more accurate than the Gaussian, and as accurate as "
    "softmax attention."
)
KINDS = {
    "laplacian": DEFAULT,
    "laplacian, plain": with_arguments(**PLAIN),
    "gaussian": with_arguments(kernel="gaussian"),
    "gaussian, plain": with_arguments(kernel="gaussian", **PLAIN),
    "softmax": other_mixer("softmax"),
}


def run(settings: Settings) -> Outcome:
    runs = runs_of(settings, {**KINDS, **CONTROLS}, "attention")
    rows = train(settings, runs)
    _draw(curves(runs, settings.trainings), settings.results / "attention.png")
    return judge(rows)


def judge(rows: Sequence[Row]) -> Outcome:
    """The Gaussian kernel counts in its better form."""
    found = compared(rows, "attention", "laplacian")
    softmax = found["softmax"][1]
    gaussian = max(found["gaussian"][1], found["gaussian, plain"][1])
    beaten = any(rival.clear and rival.mean > 0 for rival in (gaussian, softmax))
    confirmed: Verdict = "agrees" if gaussian.clear else "not confirmed at this scale"
    return variants.outcome(rows, "attention", "laplacian", "disagrees" if beaten else confirmed)


def _draw(points: Sequence[Row], path: Path) -> None:
    """Held-out accuracy after each epoch."""
    drawn = new_figure(6.5, 3.6)
    axis = drawn.subplots()
    banded(axis, points, "attention", {kind: kind for kind in (*KINDS, *CONTROLS)})
    tidy(axis, x="epochs", y="held-out top-1, %")
    axis.legend(frameon=False, title="mean and standard deviation over seeds")
    save(drawn, path)
