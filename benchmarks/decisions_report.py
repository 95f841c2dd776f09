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

BASE = json.dumps({"gram": "keys", "iterations": 6})
COLOURS = {"keys": "#0072B2", "cross": "#D55E00"}  # colour-blind safe

COLUMNS = ["question", "setting", "seeds", "top-1 %", "+-", "to the first", "+- of it", "largest gradient"]

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
    Console(width=110).print(table(groups))
    write_summary(groups, folder / "summary.csv")
    draw(groups, folder / "decisions.png")


def accuracies(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean and standard deviation over seeds."""
    return spread([float(row["accuracy"]) for row in rows])


def differences(rows: list[dict[str, Any]], base: list[dict[str, Any]]) -> tuple[float, float]:
    """To the first setting, seed by seed: mean and standard deviation."""
    by_seed = {row["seed"]: float(row["accuracy"]) for row in base}
    return spread([float(row["accuracy"]) - by_seed[row["seed"]] for row in rows if row["seed"] in by_seed])


def spread(values: list[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def summary(groups: Groups) -> list[list[str]]:
    rows = []
    for (question, setting), runs in groups.items():
        mean, deviation = accuracies(runs)
        gap, gap_deviation = differences(runs, groups["steps", BASE])
        gradient = max(float(run["largest_gradient"]) for run in runs)
        numbers = [f"{mean:.2f}", f"{deviation:.2f}", f"{gap:+.2f}", f"{gap_deviation:.2f}", f"{gradient:.3g}"]
        rows.append([question, describe(setting), str(len(runs)), *numbers])
    return sorted(rows, key=lambda row: row[0])  # within a question, as they were run


def table(groups: Groups) -> Table:
    out = Table(title="CIFAR-10 top-1 over seeds, and seed by seed against the first setting")
    for title in COLUMNS:
        out.add_column(title)
    for row in summary(groups):
        out.add_row(*row)
    return out


def describe(setting: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in json.loads(setting).items())


def write_summary(groups: Groups, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([COLUMNS, *summary(groups)])


def draw(groups: Groups, path: Path) -> None:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    gains = [(json.loads(setting)["gain"], rows) for (question, setting), rows in groups.items() if question == "gain"]
    gains.insert(1, (1.0, groups["steps", BASE]))
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
            right.axhline(
                mean, color=COLOURS[options["gram"]], linestyle=":", label=f'gram="{options["gram"]}", exact solve'
            )
    for gram, points in curves.items():
        steps, means, deviations = zip(*sorted(points), strict=True)
        right.errorbar(steps, means, deviations, marker="o", color=COLOURS[gram], capsize=4, label=f'gram="{gram}"')
        right.set_xticks(steps)
    right.set_xlabel("Newton-Schulz steps")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
