"""The model with other Gram matrices and numbers of Newton-Schulz steps than the default ones, trained alike.

The crossed Gram matrix is the paper's equation, k(Qm, Km); the default is the paper's text, k(Km, Km).
results/archive/decisions has the first evidence, from an earlier script.
"""

from collections.abc import Sequence
from pathlib import Path

from laplacianformer.experiments import variants
from laplacianformer.experiments.drawing import STYLES, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.trainings import CONTROLS, DEFAULT, compared, runs_of, train, with_arguments
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "beyond the paper, which does not give the number of steps"
CLAIM: str = (
    "With W among the landmark keys and six Newton-Schulz steps, the model is as accurate as with any other choice, "
    "and more accurate than with the crossed W of the paper's equation."
)
DEFAULT_STEPS, EXACT = 6, "exact solve"
STEPS = (2, DEFAULT_STEPS, 20)
CROSSED = {
    **{f"crossed, {steps} steps": with_arguments(gram="cross", iterations=steps) for steps in STEPS},
    f"crossed, {EXACT}": with_arguments(gram="cross", solver="cholesky"),
}
CHOICES = {
    "default": DEFAULT,
    **{f"{steps} steps": with_arguments(iterations=steps) for steps in STEPS if steps != DEFAULT_STEPS},
    EXACT: with_arguments(solver="cholesky"),
    **CROSSED,
}
QUICK = ("default", "2 steps", "crossed, 6 steps")


def run(settings: Settings) -> Outcome:
    chosen = {name: CHOICES[name] for name in QUICK} if settings.quick else CHOICES
    rows = train(settings, runs_of(settings, {**chosen, **CONTROLS}, "choice"))
    _draw(rows, settings.results / "defaults.png")
    return judge(rows)


def judge(rows: Sequence[Row]) -> Outcome:
    found = {name: difference for name, (_, difference) in compared(rows, "choice", "default").items()}
    crossed = [found[name].clear for name in CROSSED if name in found]
    beaten = any(difference.clear and difference.mean > 0 for difference in found.values())
    return variants.outcome(rows, "choice", "default", "disagrees" if beaten else variants.verdict_of_parts(crossed))


def _draw(rows: Sequence[Row], path: Path) -> None:
    """Accuracy by number of steps for both Gram matrices: means and standard deviations."""
    found = {name: own for name, (own, _) in compared(rows, "choice", "default").items()}
    drawn = new_figure(6.5, 3.6)
    axis = drawn.subplots()
    for style, label, prefix in ((STYLES[0], "W among the keys (default)", ""), (STYLES[1], "W crossed", "crossed, ")):
        names = {steps: f"{prefix}{steps} steps" for steps in STEPS}
        if not prefix:
            names[DEFAULT_STEPS] = "default"
        known = {steps: found[name] for steps, name in names.items() if name in found}
        means, deviations = ([own[part] for own in known.values()] for part in (0, 1))
        axis.errorbar(list(known), means, deviations, **style, label=label, markersize=5, capsize=3)
        if exact := found.get(f"{prefix}{EXACT}"):
            axis.axhline(exact.mean, color=style["color"], linestyle=":", label=f"{label}, {EXACT}")
    axis.set_xticks(STEPS)
    tidy(axis, x="Newton-Schulz steps", y="held-out accuracy, %")
    drawn.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(drawn, path)
