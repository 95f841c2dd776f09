"""One model with three kinds of attention and with none, all else equal: its accuracy after the same training.

Hidden pixels have to be found by attention. The classes of images, beside them, show how little it may be worth.
"""

from collections.abc import Sequence
from pathlib import Path

from laplacianformer.experiments import variants
from laplacianformer.experiments.drawing import banded, tidy
from laplacianformer.experiments.frame import Outcome, Settings, Verdict
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.sweep import curves
from laplacianformer.experiments.trainings import (
    CLASSIFIER,
    CONTROLS,
    DEFAULT,
    NORMALISED,
    PROBE,
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
OURS, GAUSSIAN = ("laplacian", "laplacian, normalised"), ("gaussian", "gaussian, normalised")
KINDS = {
    OURS[0]: DEFAULT,
    OURS[1]: with_arguments(**NORMALISED),
    GAUSSIAN[0]: with_arguments(kernel="gaussian"),
    GAUSSIAN[1]: with_arguments(kernel="gaussian", **NORMALISED),
    "softmax": other_mixer("softmax"),
}
CLASSIFIED = {name: KINDS[name] for name in (OURS[0], "softmax")}


def run(settings: Settings) -> Outcome:
    runs = [
        *runs_of(settings, {**KINDS, **CONTROLS}, "attention", labels={"vehicle": PROBE}),
        *runs_of(settings, {**CLASSIFIED, **CONTROLS}, "attention", labels={"vehicle": CLASSIFIER}, recipe=CLASSIFIER),
    ]
    rows = train(settings, sorted(runs, key=lambda run: run.seed))
    points = [point for point in curves(runs, settings.trainings) if point["vehicle"] == PROBE]
    _draw(points, settings.results / "attention.png")
    return judge(rows)


def judge(rows: Sequence[Row]) -> Outcome:
    """Both kernels count in their better form."""
    pixels, images = ([row for row in rows if row["vehicle"] == vehicle] for vehicle in (PROBE, CLASSIFIER))
    ours, gaussian = variants.best(pixels, "attention", OURS), variants.best(pixels, "attention", GAUSSIAN)
    found = {name: difference for name, (_, difference) in compared(pixels, "attention", ours).items()}
    beaten = any(found[rival].clear and found[rival].mean > 0 for rival in (gaussian, "softmax"))
    confirmed: Verdict = "agrees" if found[gaussian].clear else "not confirmed at this scale"
    outcome = variants.outcome(pixels, "attention", ours, "disagrees" if beaten else confirmed)
    worth, _ = variants.worth_of_attention(images, "attention", OURS[0])
    measured = (
        f"{outcome.measured} Where a model of this kind classifies images and takes the mean over its tokens: "
        f"{variants.measured(images, 'attention', OURS[0])} {worth}"
    )
    return Outcome(measured, outcome.verdict)


def _draw(points: Sequence[Row], path: Path) -> None:
    """Held-out accuracy after each epoch."""
    drawn = new_figure(6.5, 4.6)
    axis = drawn.subplots()
    banded(axis, points, "attention", {kind: kind for kind in (*KINDS, *CONTROLS)})
    tidy(axis, x="epochs", y="held-out accuracy, %")
    handles = axis.get_legend_handles_labels()
    title = "mean and standard deviation over seeds"
    drawn.legend(*handles, loc="outside lower center", ncols=3, frameon=False, title=title)
    save(drawn, path)
