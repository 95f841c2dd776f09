"""One model, three kinds of attention, everything else equal: how accurate it becomes in the same training."""

from collections.abc import Sequence
from pathlib import Path

from laplacianformer.experiments.drawing import STYLES, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row, read_rows
from laplacianformer.experiments.statistics import paired, summary
from laplacianformer.experiments.sweep import Run, sweep
from laplacianformer.pictures.figure import new_figure, save

SOURCE = "beyond the paper"
CLAIM = (
    "With everything else equal, the Laplacian kernel is more accurate than the Gaussian, and as accurate as "
    "softmax attention."
)
KINDS: dict[str, tuple[str, ...]] = {
    "laplacian": (),
    "gaussian": ("model.args.attention_args.kernel=gaussian",),
    "softmax": ("model.args.attention=softmax", "model.args.attention_args={}"),
}


def run(settings: Settings) -> Outcome:
    recipe, data = settings.images()
    seeds, epochs = (2, 1) if settings.quick else (3, 3)
    schedule = (f"optimise.epochs={epochs}", "optimise.warmup_epochs=0.25", "run.tensorboard=false", "data.workers=0")
    runs = [
        Run(recipe, {"attention": kind}, (*schedule, *overrides), seed, data)
        for seed in range(seeds)
        for kind, overrides in KINDS.items()
    ]
    rows = sweep(runs, settings.results, settings.work, settings.processes)
    draw(read_rows(settings.results / "curves.csv"), settings.results / "attention.png", recipe)
    return judge(rows)


def accuracies(rows: Sequence[Row], kind: str) -> list[float]:
    """In percent, by seed."""
    return [100 * float(row["accuracy"]) for row in rows if row["attention"] == kind]


def judge(rows: Sequence[Row]) -> Outcome:
    ours, gaussian, softmax = (accuracies(rows, kind) for kind in KINDS)
    over_gaussian, over_softmax = paired(ours, gaussian), paired(ours, softmax)
    measured = (
        f"top-1 of {len(ours)} seeds (%): Laplacian {summary(ours)}, Gaussian {summary(gaussian)}, softmax "
        f"{summary(softmax)}. Laplacian over Gaussian {over_gaussian}, over softmax {over_softmax} (points, paired by "
        "seed, 95 % interval)."
    )
    if (over_gaussian.clear and over_gaussian.mean < 0) or (over_softmax.clear and over_softmax.mean < 0):
        return Outcome(measured, "disagrees")
    return Outcome(measured, "agrees" if over_gaussian.clear else "not confirmed at this scale")


def draw(points: Sequence[Row], path: Path, recipe: str) -> None:
    """Held-out accuracy after each epoch: a line a seed, and the mean of them."""
    drawn = new_figure(6.5, 3.6)
    axis = drawn.subplots()
    for style, kind in zip(STYLES, KINDS, strict=False):
        lines: dict[str, list[tuple[float, float]]] = {}
        for point in points:
            if point["attention"] == kind:
                place = float(point["epoch"]), 100 * float(point["validation_accuracy"])
                lines.setdefault(point["seed"], []).append(place)
        for line in lines.values():
            axis.plot(*zip(*line, strict=True), color=style["color"], alpha=0.3, linewidth=0.8)
        epochs = [epoch for epoch, _ in next(iter(lines.values()))]
        means = [summary([line[k][1] for line in lines.values()]).mean for k in range(len(epochs))]
        axis.plot(epochs, means, **style, label=f"{kind} (mean of {len(lines)} seeds)")
    tidy(axis, x="epochs", y=f"held-out top-1 on {recipe}, %")
    axis.legend(frameon=False)
    save(drawn, path)
