"""The encoder of the published comparison on four tasks of Long Range Arena, with every token mixer in its place.

The published comparison takes up to 50,000 steps per run; here it is 400, with the same data, lengths and sizes: what
two cores can do in a night. Accuracies are therefore lower than those reported, and are compared with each other.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laplacianformer._util.errors import InputError
from laplacianformer.experiments.drawing import STYLES, banded, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.experiments.statistics import Difference, paired, summary
from laplacianformer.experiments.sweep import Run, curves, sweep
from laplacianformer.experiments.trainings import accuracies
from laplacianformer.experiments.variants import verdict_of_parts
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "beyond the paper: Long Range Arena, against the numbers of the Skyformer paper"
CLAIM: str = (
    "Over ListOps, Pathfinder, Image and Text together, an encoder without mixing and one with the local convolution "
    "alone are less accurate than with Laplacian attention, and none of the other token mixers is more accurate."
)
OURS = "laplacian"
# As in the experiment kernel-convergence: the mean of the values, because blocks here normalise before the attention.
AVERAGED = "{averaged: true}"
MIXERS: dict[str, tuple[str, str]] = {  # name of the token mixer, and its arguments
    OURS: ("laplacian", "{gain: 11.3}"),
    "gaussian": ("ablation", "{kernel: gaussian, gain: 11.3}"),
    "softmax": ("softmax", "{}"),
    "nystromformer": ("nystromformer", "{}"),
    "skyformer": ("skyformer", AVERAGED),
    "soft++": ("soft++", AVERAGED),
    "performer": ("performer", "{}"),
    "linear": ("linear", "{}"),
    "local": ("local", "{}"),
    "none": ("none", "{}"),
}
CONTROLS = ("local", "none")
SEEDS = 3
SHARED = (
    *("data.workers=0", "data.cache=true", "data.val_samples=1000", "optimise.epochs=4", "optimise.lr=1e-3"),
    *("optimise.warmup_epochs=0.5", "run.eval_epochs=1", "run.accelerator=cpu", "run.devices=1"),
    *("run.log_steps=25", "run.checkpoint_steps=50", "run.tensorboard=false"),
)
# Overrides of the recipe lra-TASK: 400 steps.
BUDGET: dict[str, tuple[str, ...]] = {
    "listops": ("data.train_samples=3200", "optimise.batch_size=32"),
    "pathfinder": ("data.train_samples=3200", "optimise.batch_size=32"),
    "image": ("data.train_samples=3200", "optimise.batch_size=32"),
    "text": ("data.train_samples=1600", "optimise.batch_size=16"),
}
QUICK_MIXERS = (OURS, "none")
QUICK_SHARED = (
    *("data.workers=0", "data.train_samples=16", "data.val_samples=8", "optimise.epochs=2", "optimise.batch_size=8"),
    *("optimise.warmup_epochs=0.5", "run.eval_epochs=1", "encoder.landmarks=8", "run.tensorboard=false"),
)
QUICK: dict[str, tuple[str, ...]] = {
    "listops": ("data.length=60", "data.shortest=10"),
    "pathfinder": (),
    "image": ("data.length=64",),
    "text": ("data.length=100",),
}
# Accuracy in %, as reported by the Skyformer paper (Chen, Zeng, Ji and Yang, 2021); its Gaussian kernel is exact.
REPORTED: dict[str, dict[str, float]] = {
    "listops": {"softmax": 38.37, "gaussian": 38.78, "nystromformer": 38.51, "performer": 38.02, "skyformer": 38.69},
    "pathfinder": {"softmax": 65.26, "gaussian": 70.73, "nystromformer": 69.48, "performer": 66.30, "skyformer": 70.73},
    "image": {"softmax": 40.57, "gaussian": 41.29, "nystromformer": 41.30, "performer": 41.43, "skyformer": 40.77},
    "text": {"softmax": 61.95, "gaussian": 60.22, "nystromformer": 64.83, "performer": 64.19, "skyformer": 64.70},
}


def run(settings: Settings) -> Outcome:
    runs = runs_of(settings)
    rows = sweep(runs, settings.trainings, settings.work, settings.processes, progress=settings.progress)
    write_rows(settings.results / "accuracy.csv", _table(rows))
    _draw(rows, curves(runs, settings.trainings), settings.results / "long-range.png")
    return judge(rows)


def runs_of(settings: Settings) -> list[Run]:
    """Seeds are the outer loop: a sweep that is stopped leaves complete comparisons."""
    data = _data(settings)
    shared, budget = (QUICK_SHARED, QUICK) if settings.quick else (SHARED, BUDGET)
    return [
        Run(
            f"lra-{task}",
            {"task": task, "attention": name},
            (*shared, *budget[task], f"encoder.attention={mixer}", f"encoder.attention_args={arguments}"),
            seed,
            data.get(task),
        )
        for seed in range(1 if settings.quick else SEEDS)
        for task in budget
        for name, (mixer, arguments) in MIXERS.items()
        if not settings.quick or name in QUICK_MIXERS
    ]


def _data(settings: Settings) -> dict[str, str]:
    """What --data is for the tasks that are not generated."""
    if settings.quick:
        return {"image": "digits", "text": str(_small_corpus(settings.work / "texts"))}
    if settings.cifar10 is None or settings.imdb is None:
        raise InputError(
            "this experiment trains on CIFAR-10 and IMDb: give --cifar10 DIR (DIR/train/CLASS, DIR/val/CLASS) and "
            "--imdb DIR (DIR/train/{pos,neg}/*.txt, DIR/test/{pos,neg}/*.txt)"
        )
    return {"image": settings.cifar10, "text": settings.imdb}


def _small_corpus(root: Path) -> Path:
    """A few generated texts of two classes, in IMDb's layout."""
    chance = random.Random(0)
    for split in ("train", "test"):
        for label, words in (("pos", "good fine great"), ("neg", "bad poor awful")):
            folder = root / split / label
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(8):
                text = " ".join(chance.choices([*words.split(), "a", "film"], k=12))
                (folder / f"{number}.txt").write_text(text)
    return root


# ---- what was found ----


def _of(rows: Sequence[Row], task: str) -> list[Row]:
    return [row for row in rows if row["task"] == task]


def _names(rows: Sequence[Row], column: str) -> list[str]:
    return list(dict.fromkeys(row[column] for row in rows))


def difference(rows: Sequence[Row], name: str) -> Difference:
    """A token mixer minus ours, in points, paired by task and seed."""
    both = [
        [accuracy for task in _names(rows, "task") for accuracy in accuracies(_of(rows, task), "attention", mixer)]
        for mixer in (name, OURS)
    ]
    return paired(*both)


def _table(rows: Sequence[Row]) -> list[Row]:
    """One row per task and token mixer."""
    table: list[Row] = []
    for task in _names(rows, "task"):
        found = _of(rows, task)
        for name in _names(found, "attention"):
            own, over = summary(accuracies(found, "attention", name)), difference(found, name)
            seconds = [float(row["seconds"]) for row in found if row["attention"] == name]
            table.append(
                {
                    "task": task,
                    "attention": name,
                    "seeds": len(seconds),
                    "accuracy": round(own.mean, 2),
                    "deviation": round(own.deviation, 2),
                    "over_laplacian": round(over.mean, 2),
                    "margin": round(over.margin, 2),
                    "seconds": round(sum(seconds) / len(seconds)),
                    "reported_accuracy": REPORTED[task].get(name, ""),
                }
            )
    return table


def judge(rows: Sequence[Row]) -> Outcome:
    names, tasks = _names(rows, "attention"), _names(rows, "task")
    found = {name: difference(rows, name) for name in names if name != OURS}
    seeds = len(accuracies(_of(rows, tasks[0]), "attention", OURS))
    overall = ", ".join(f"{name} {each}" for name, each in found.items())
    by_task = "; ".join(f"{task}: {_accuracies(_of(rows, task), names)}" for task in tasks)
    measured = (
        f"accuracy minus that of Laplacian attention in points, over {len(tasks)} tasks and {seeds} "
        f"{'seeds' if seeds > 1 else 'seed'} (paired, 95 % interval): {overall}. Accuracies in %, in brackets those "
        f"reported by the Skyformer paper after up to 50,000 steps: {by_task}."
    )
    if any(each.clear and each.mean > 0 for name, each in found.items() if name not in CONTROLS):
        return Outcome(measured, "disagrees")
    below = [found[name].clear and found[name].mean < 0 for name in CONTROLS if name in found]
    return Outcome(measured, verdict_of_parts(below))


def _accuracies(rows: Sequence[Row], names: Sequence[str]) -> str:
    parts = []
    for name in names:
        reported = REPORTED[rows[0]["task"]].get(name)
        mean = summary(accuracies(rows, "attention", name)).mean
        parts.append(f"{name} {mean:.1f}" + (f" ({reported:.1f})" if reported is not None else ""))
    return ", ".join(parts)


# ---- plot ----


def _draw(rows: Sequence[Row], points: Sequence[Row], path: Path) -> None:
    """For each task: accuracy by epoch, differences to ours, and accuracy against time."""
    tasks, names = _names(rows, "task"), _names(rows, "attention")
    drawn = new_figure(13, 9.5)
    panels = drawn.subplots(3, len(tasks), squeeze=False)
    for column, task in enumerate(tasks):
        found, curve = _of(rows, task), _of(points, task)
        top, middle, bottom = panels[:, column]
        banded(top, curve, "attention", {name: name for name in names})
        top.set_title(task, fontsize=11)
        tidy(top, x="epochs", y="held-out accuracy, %")
        _draw_differences(middle, found, names)
        _draw_time(bottom, found, curve, names)
    handles = panels[0, 0].get_legend_handles_labels()
    drawn.legend(*handles, loc="outside lower center", ncols=5, frameon=False, title="mean and deviation over seeds")
    save(drawn, path)


def _draw_differences(axis: Any, rows: Sequence[Row], names: Sequence[str]) -> None:
    """Of each token mixer to ours: the mean with its 95 % interval."""
    axis.axhline(0, color="#888888", linewidth=0.8)
    for x, (style, name) in enumerate(zip(STYLES, names, strict=False)):
        over = difference(rows, name)
        margin = over.margin if over.margin < float("inf") else 0.0
        axis.errorbar([x], [over.mean], [margin], **style | {"linestyle": "none"}, capsize=3, markersize=5)
    axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
    tidy(axis, x="", y="accuracy minus ours, points")


def _draw_time(axis: Any, rows: Sequence[Row], points: Sequence[Row], names: Sequence[str]) -> None:
    """Accuracy after each epoch against the time that the training had taken, the mean over seeds of both."""
    for style, name in zip(STYLES, names, strict=False):
        seconds = [float(row["seconds"]) for row in rows if row["attention"] == name]
        by_epoch = _by_epoch([point for point in points if point["attention"] == name])
        last, mean = max(by_epoch), sum(seconds) / len(seconds)
        times = [mean * epoch / last for epoch in by_epoch]
        axis.plot(times, [summary(values).mean for values in by_epoch.values()], **style, markersize=4)
    tidy(axis, x="seconds", y="held-out accuracy, %")


def _by_epoch(points: Sequence[Row]) -> Mapping[float, list[float]]:
    found: dict[float, list[float]] = {}
    for point in sorted(points, key=lambda point: float(point["epoch"])):
        found.setdefault(float(point["epoch"]), []).append(100 * float(point["validation_accuracy"]))
    return found
