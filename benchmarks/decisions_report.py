"""Table and plot of results/decisions/runs.csv. Called by `decisions.py report`."""

import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
from rich.console import Console
from rich.table import Table

matplotlib.use("agg")
from matplotlib import pyplot

DEFAULT = json.dumps({"gram": "keys", "iterations": 6})
COLOURS = {"keys": "#0072B2", "cross": "#D55E00"}  # colour-blind safe

Groups = dict[tuple[str, str], list[dict[str, Any]]]


def report(folder: Path) -> None:
    path = folder / "runs.csv"
    if not path.exists():
        raise SystemExit(f"{path} is not there: run `python benchmarks/decisions.py run --data ...` first")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    groups: Groups = defaultdict(list)
    for row in rows:
        groups[row["question"], row["setting"]].append(row)
    Console().print(table(groups))
    write_summary(groups, folder / "summary.csv")
    draw(groups, folder / "decisions.png")


def accuracies(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean and standard deviation over seeds."""
    values = [float(row["accuracy"]) for row in rows]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def table(groups: Groups) -> Table:
    out = Table(title="CIFAR-10 top-1, mean and standard deviation over seeds")
    for title in ("question", "setting", "seeds", "top-1 %", "deviation", "largest gradient norm"):
        out.add_column(title)
    for (question, setting), rows in groups.items():
        mean, deviation = accuracies(rows)
        gradient = max(float(row["largest_gradient"]) for row in rows)
        out.add_row(question, describe(setting), str(len(rows)), f"{mean:.2f}", f"{deviation:.2f}", f"{gradient:.3g}")
    return out


def describe(setting: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in json.loads(setting).items())


def write_summary(groups: Groups, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "setting", "seeds", "mean", "deviation", "largest_gradient"])
        for (question, setting), rows in groups.items():
            mean, deviation = accuracies(rows)
            gradient = max(float(row["largest_gradient"]) for row in rows)
            writer.writerow([question, setting, len(rows), f"{mean:.3f}", f"{deviation:.3f}", f"{gradient:.4g}"])


def draw(groups: Groups, path: Path) -> None:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    gains = [(json.loads(setting)["gain"], rows) for (question, setting), rows in groups.items() if question == "gain"]
    gains.insert(1, (1.0, groups["steps", DEFAULT]))
    for place, (_, rows) in enumerate(gains):
        mean, deviation = accuracies(rows)
        left.errorbar(place, mean, deviation, fmt="o", color=COLOURS["keys"], capsize=4)
        left.plot([place] * len(rows), [float(row["accuracy"]) for row in rows], "_", color="grey")
    left.set_xticks(range(len(gains)), [f"{gain:g}" if isinstance(gain, float) else gain for gain, _ in gains])
    left.set_xlabel("gain of the whitened part")
    left.set_ylabel("CIFAR-10 top-1, %")

    curves: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for (question, setting), rows in groups.items():
        options = json.loads(setting)
        if question == "steps":
            curves[options["gram"]].append((options["iterations"], *accuracies(rows)))
        elif question == "solver":
            mean, _ = accuracies(rows)
            right.axhline(mean, color=COLOURS[options["gram"]], linestyle=":", label=f"{options['gram']}, exact solve")
    for gram, points in curves.items():
        steps, means, deviations = zip(*sorted(points), strict=True)
        right.errorbar(steps, means, deviations, marker="o", color=COLOURS[gram], capsize=4, label=f"W among {gram}")
    right.set_xlabel("Newton-Schulz steps")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
