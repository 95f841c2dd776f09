"""Three models with each of two kernels, everything else equal: accuracy on held-out images after every epoch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from laplacianformer.experiments.branches import Branch, branch_of
from laplacianformer.experiments.drawing import banded, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.statistics import PairedDifference, paired
from laplacianformer.experiments.sweep import curves, weights_of
from laplacianformer.experiments.trainings import CONTROLS, DEFAULT, other_mixer, runs_of, train, with_arguments
from laplacianformer.experiments.variants import DOES_NOT_MATTER, worth_of_attention
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "Figure 2a"
CLAIM: str = (
    "With a Laplacian kernel in place of the Gaussian, SOFT++ and Skyformer converge faster and end slightly more "
    "accurate on ImageNet."
)
# averaged: the mean of the values instead of their sum, because blocks here normalise before the attention: Skyformer's
# sums start at 5 to 50 times the values. SOFT++ normalises by itself (docs/baselines.md).
MODELS = {
    "SOFT++": ("soft++", "{{kernel: {}}}"),
    "Skyformer": ("skyformer", "{{kernel: {}, grid: 5, averaged: true}}"),
}
KERNELS = ("laplacian", "gaussian")
OURS = "LaplacianFormer"
VARIANTS = {
    **{
        f"{model}, {kernel}": other_mixer(mixer, arguments.format(kernel))
        for model, (mixer, arguments) in MODELS.items()
        for kernel in KERNELS
    },
    f"{OURS}, laplacian": DEFAULT,
    f"{OURS}, gaussian": with_arguments(kernel="gaussian"),
}


def run(settings: Settings) -> Outcome:
    runs = runs_of(settings, {**VARIANTS, **CONTROLS}, "variant")
    rows, points = train(settings, runs), curves(runs, settings.trainings)
    _draw(points, settings.results / "kernel-convergence.png")
    first = runs[: len(VARIANTS)]  # of one seed
    train(settings, first, weights=True)
    branches = {
        run.labels["variant"]: (branch_of(run), branch_of(run, weights_of(run, settings.work))) for run in first
    }
    return judge(rows, points, branches)


def _mean_and_last(points: Sequence[Row], variant: str) -> dict[str, list[float]]:
    """Accuracy in percent, by seed: averaged over the epochs, which says how fast it grew, and after the last epoch."""
    by_seed: dict[str, list[float]] = {}
    for point in points:
        if point["variant"] == variant:
            by_seed.setdefault(point["seed"], []).append(100 * float(point["validation_accuracy"]))
    return {"mean": [sum(curve) / len(curve) for curve in by_seed.values()], "last": [c[-1] for c in by_seed.values()]}


def _differences(points: Sequence[Row], model: str) -> Mapping[str, PairedDifference]:
    """The Laplacian kernel minus the Gaussian."""
    laplacian, gaussian = (_mean_and_last(points, f"{model}, {kernel}") for kernel in KERNELS)
    return {what: paired(laplacian[what], gaussian[what]) for what in laplacian}


def judge(rows: Sequence[Row], points: Sequence[Row], branches: Mapping[str, tuple[Branch, Branch]]) -> Outcome:
    """`branches`: of each variant before and after training."""
    worth, matters = worth_of_attention(rows, "variant", f"{OURS}, laplacian")
    found = {model: _differences(points, model) for model in (*MODELS, OURS)}
    listed = "; ".join(f"{model} {each['mean']} and {each['last']}" for model, each in found.items())
    seen = "; ".join(f"{variant} {before}, then {after}" for variant, (before, after) in branches.items())
    measured = (
        "accuracy of the Laplacian kernel minus that of the Gaussian, in points, averaged over the epochs and after "
        f"the last epoch (paired by seed, 95 % interval): {listed}. {worth} The mean off-diagonal entry of W, and the "
        f"part of the global branch that depends on the token over the values, before and after training: {seen}."
    )
    if not matters:
        return Outcome(measured, DOES_NOT_MATTER)
    faster = [found[model]["mean"] for model in MODELS]
    up = [difference.clear and difference.mean > 0 for difference in faster]
    down = [difference.clear and difference.mean < 0 for difference in faster]
    if all(up):
        return Outcome(measured, "agrees")
    if any(up):
        return Outcome(measured, "agrees in part")
    return Outcome(measured, "disagrees" if any(down) else "not confirmed at this scale")


def _draw(points: Sequence[Row], path: Path) -> None:
    drawn = new_figure(9, 3.4)
    for axis, model in zip(drawn.subplots(1, 3, sharey=True), (*MODELS, OURS), strict=True):
        banded(axis, points, "variant", {f"{model}, {kernel}": kernel for kernel in KERNELS})
        axis.set_title(model, fontsize=10)
        tidy(axis, x="epochs", y="held-out accuracy, %")
        axis.label_outer()
    handles = axis.get_legend_handles_labels()
    drawn.legend(
        *handles, loc="outside lower center", ncols=2, frameon=False, title="mean and standard deviation over seeds"
    )
    save(drawn, path)
