"""Sweeps over one setting of the model: variants against the default, paired by seed, and the worth of attention."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laplacianformer.experiments.drawing import STYLES, tidy
from laplacianformer.experiments.frame import Outcome, Settings, Verdict
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.statistics import paired, summary
from laplacianformer.experiments.trainings import CONTROLS, Variants, accuracies, compared, cpu_seconds, runs_of, train
from laplacianformer.plots._figure import new_figure, save

Reported = Mapping[str, Mapping[str, float]]  # series of the paper: {variant: its accuracy minus that of the default}
# Points that attention must be worth for a comparison of two kinds of it to say anything.
MATTERS = 2.0
DOES_NOT_MATTER: Verdict = "attention does not matter here"


def compare(
    settings: Settings,
    column: str,
    variants: Variants,
    default: str,
    reported: Reported | None = None,
    **shared: Any,
) -> list[Row]:
    """Train all variants and the controls, and plot their differences to the default. `shared`: as in `runs_of`."""
    rows = train(settings, runs_of(settings, {**variants, **CONTROLS}, column, **shared))
    draw(rows, column, default, reported or {}, settings.results / f"{settings.results.name}.png")
    return rows


def table(rows: Sequence[Row], column: str, default: str) -> list[Row]:
    """One row per variant: its accuracy, its difference to the default, and what a training took."""
    found: list[Row] = []
    for name, (own, over) in compared(rows, column, default).items():
        seconds = cpu_seconds(rows, column, name)
        found.append(
            {
                column: name,
                "seeds": len(accuracies(rows, column, name)),
                "accuracy": round(own.mean, 2),
                "deviation": round(own.deviation, 2),
                "difference": round(over.mean, 2),
                "margin": round(over.margin, 2),
                "cpu_seconds": round(sum(seconds) / len(seconds)) if seconds else "",
            }
        )
    return found


def measured(rows: Sequence[Row], column: str, default: str) -> str:
    seeds = len(accuracies(rows, column, default))
    listed = ", ".join(
        f"{name} {own}" if name == default else f"{name} {own} ({difference})"
        for name, (own, difference) in compared(rows, column, default).items()
    )
    return (
        f"accuracy of {seeds} {'seeds' if seeds > 1 else 'seed'} (%; in brackets the difference to {default} in "
        f"points, paired by seed, 95 % interval): {listed}."
    )


def verdict_of_parts(confirmed: Sequence[bool]) -> Verdict:
    """The verdict on a claim with several parts, none of which is contradicted."""
    return "agrees" if all(confirmed) else "agrees in part" if any(confirmed) else "not confirmed at this scale"


def judge(
    rows: Sequence[Row], column: str, default: str, others: Sequence[str] | None = None, forms: Sequence[str] = ()
) -> Outcome:
    """Whether the default is more accurate than the others. Differences within the noise count neither way. `forms`: as
    in `outcome`."""
    found = compared(rows, column, default)
    rivals = others or [name for name in found if name != default and name not in CONTROLS]
    differences = [found[name][1] for name in rivals]
    if any(difference.clear and difference.mean > 0 for difference in differences):
        return outcome(rows, column, default, "disagrees", forms)
    return outcome(rows, column, default, verdict_of_parts([difference.clear for difference in differences]), forms)


def outcome(rows: Sequence[Row], column: str, default: str, verdict: Verdict, forms: Sequence[str] = ()) -> Outcome:
    """What was measured, and the verdict, unless attention is worth so little that nothing can be said about it: the
    default minus the better control, or the best of these forms minus it."""
    worth, matters = worth_of_attention(rows, column, best(rows, column, (default, *forms)))
    return Outcome(f"{measured(rows, column, default)} {worth}", verdict if matters else DOES_NOT_MATTER)


def best(rows: Sequence[Row], column: str, names: Sequence[str]) -> str:
    """The one of these variants with the highest mean accuracy."""
    return max(names, key=lambda name: summary(accuracies(rows, column, name)).mean)


def worth_of_attention(rows: Sequence[Row], column: str, default: str) -> tuple[str, bool]:
    """The default minus the better of the controls, as a sentence, and whether that is enough to compare."""
    base = accuracies(rows, column, default)
    trained = [control for control in CONTROLS if any(row[column] == control for row in rows)]
    worth, control = min((paired(base, accuracies(rows, column, control)), control) for control in trained)
    better = f"{control}, the better control" if len(trained) > 1 else control
    sentence = (
        f"Attention is worth {worth} points here ({default} minus {better}; comparisons count from {MATTERS:g} points)."
    )
    return sentence, worth.mean >= MATTERS


def draw(rows: Sequence[Row], column: str, default: str, reported: Reported, path: Path) -> None:
    """Differences to the default in points: of each seed, their mean with its 95 % interval, and the paper's. Those of
    the controls are in the title: they are so large that nothing else could be seen beside them."""
    every = compared(rows, column, default)
    found = {name: each for name, each in every.items() if name not in CONTROLS}
    base = accuracies(rows, column, default)
    drawn = new_figure(6.5, 3.4)
    axis = drawn.subplots()
    axis.axhline(0, color="#888888", linewidth=0.8)
    dots = {"marker": "o", "color": "#888888", "markersize": 3, "linestyle": "none"}
    for x, name in enumerate(found):
        over = [own - other for own, other in zip(accuracies(rows, column, name), base, strict=True)]
        axis.plot([x - 0.12] * len(over), over, **dots, label="_" if x else "one seed")
    others = {x: difference for x, (name, (_, difference)) in enumerate(found.items()) if name != default}
    if len(base) > 1:
        means, margins = zip(*others.values(), strict=True)
        style = STYLES[0] | {"linestyle": "none"}
        axis.errorbar(list(others), means, margins, **style, capsize=3, label="mean, 95 % interval")
    for style, (series, points) in zip(STYLES[1:], reported.items(), strict=False):
        shown = {x + 0.15: points[name] for x, name in enumerate(found) if name in points and x in others}
        label = f"reported by the paper: {series}"
        axis.plot(list(shown), list(shown.values()), **style | {"linestyle": "none"}, label=label)
    wrapped = max(8, 84 // len(found))
    axis.set_xticks(range(len(found)), [textwrap.fill(name, wrapped) for name in found])
    axis.set_xlim(-0.5, len(found) - 0.5)
    tidy(axis, x="", y="difference in accuracy, points")
    controls = "".join(f", {name} {every[name][0].mean:.1f} %" for name in CONTROLS if name in every)
    axis.set_title(f"{default} {summary(base).mean:.1f} %{controls}: means of {len(base)}", fontsize=10)
    drawn.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(drawn, path)
