"""The model with other gains, Gram matrices and numbers of Newton-Schulz steps than the default ones, trained alike.

The crossed Gram matrix is the paper's equation, k(Qm, Km); the default is the paper's text, k(Km, Km). The recipe has
4 x 4 landmarks, so its gain of 4 is sqrt(m). results/archive/decisions has the first evidence, from an earlier script.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laplacianformer.experiments import variants
from laplacianformer.experiments.drawing import STYLES, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.statistics import Summary
from laplacianformer.experiments.trainings import DEFAULT, compared, runs_of, train, with_arguments
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "beyond the paper, which gives neither gain nor number of steps"
CLAIM: str = (
    "With W among the landmark keys, six Newton-Schulz steps and a gain of sqrt(m), the model is as accurate as with "
    "any other choice, and more accurate than with the crossed W of the paper's equation."
)
DEFAULT_STEPS, EXACT = 6, "exact solve"
STEPS = (2, 4, DEFAULT_STEPS, 8, 12, 20)
GAINS = {"gain 0.5": "0.5", "gain 1": "1.0", "gain learned": "learned"}
CROSSED = {
    **{f"crossed, {steps} steps": with_arguments(gram="cross", iterations=steps) for steps in STEPS},
    f"crossed, {EXACT}": with_arguments(gram="cross", solver="cholesky"),
}
CHOICES = {
    "default": DEFAULT,
    **{name: with_arguments(gain=gain) for name, gain in GAINS.items()},
    **{f"{steps} steps": with_arguments(iterations=steps) for steps in STEPS if steps != DEFAULT_STEPS},
    EXACT: with_arguments(solver="cholesky"),
    **CROSSED,
}
QUICK = ("default", "gain 1", "2 steps", "crossed, 6 steps")


def run(settings: Settings) -> Outcome:
    chosen = {name: CHOICES[name] for name in QUICK} if settings.quick else CHOICES
    rows = train(settings, runs_of(settings, chosen, "choice"))
    _draw(rows, settings.results / "defaults.png")
    return judge(rows)


def judge(rows: Sequence[Row]) -> Outcome:
    measured = variants.measured(rows, "choice", "default")
    found = {name: difference for name, (_, difference) in compared(rows, "choice", "default").items()}
    if any(difference.clear and difference.mean > 0 for difference in found.values()):
        return Outcome(measured, "disagrees")
    return Outcome(measured, variants.verdict_of_parts([found[name].clear for name in CROSSED if name in found]))


def _draw(rows: Sequence[Row], path: Path) -> None:
    """Accuracy by gain, and by number of steps for both Gram matrices: means and standard deviations."""
    found = {name: own for name, (own, _) in compared(rows, "choice", "default").items()}
    drawn = new_figure(9, 3.6)
    left, right = drawn.subplots(1, 2, sharey=True)
    gains = {"gain 0.5": "0.5", "gain 1": "1", "default": "default", "gain learned": "learned"}
    _errorbars(left, {x: found.get(name) for x, name in enumerate(gains)}, STYLES[0] | {"linestyle": "none"})
    left.set_xticks(range(len(gains)), list(gains.values()))
    tidy(left, x="gain of the whitened part", y="held-out top-1, %")
    for style, label, prefix in ((STYLES[0], "W among the keys (default)", ""), (STYLES[1], "W crossed", "crossed, ")):
        names = {steps: f"{prefix}{steps} steps" for steps in STEPS}
        if not prefix:
            names[DEFAULT_STEPS] = "default"
        _errorbars(right, {steps: found.get(name) for steps, name in names.items()}, style, label=label)
        if exact := found.get(f"{prefix}{EXACT}"):
            right.axhline(exact.mean, color=style["color"], linestyle=":", label=f"{label}, {EXACT}")
    right.set_xticks(STEPS)
    tidy(right, x="Newton-Schulz steps", y="")
    drawn.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(drawn, path)


def _errorbars(axis: Any, by_x: Mapping[int, Summary | None], style: dict[str, Any], label: str | None = None) -> None:
    known = {x: own for x, own in by_x.items() if own is not None}
    means, deviations = ([own[part] for own in known.values()] for part in (0, 1))
    axis.errorbar(list(known), means, deviations, **style, label=label, markersize=5, capsize=3)
