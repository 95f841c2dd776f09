"""Associative recall by token mixer and by number of landmarks: where all tokens differ from their neighbours."""

from collections.abc import Sequence
from pathlib import Path

from laplacianformer.experiments import variants
from laplacianformer.experiments.drawing import tidy
from laplacianformer.experiments.frame import Outcome, Settings, Verdict
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.statistics import paired, summary
from laplacianformer.experiments.sweep import Training
from laplacianformer.experiments.trainings import QUICK, accuracies, compared, train
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "beyond the paper, whose landmarks are means of neighbouring tokens"
CLAIM: str = (
    "Comparing every token with landmarks stands for comparing it with every token. So with 8 landmarks for 17 tokens, "
    "Laplacian attention should recall as much as softmax attention does."
)
SEEDS = 2
STANDARD, FEWER = "softmax", ("laplacian, 8 landmarks", "laplacian, plain, 8 landmarks")
CONTROLS = {"mean of all tokens": ("attention=mean", "{}", 17), "none": ("attention=none", "{}", 17)}
# Name of a variant: the token mixer, its arguments, and the number of landmarks or features. 17 tokens need no solve.
NORMALISED = "{qk_norm: true}"
VARIANTS = {
    STANDARD: ("attention=softmax", "{}", 17),
    **{f"laplacian, {count} landmarks": ("attention=laplacian", NORMALISED, count) for count in (17, 12, 8, 4)},
    **{f"laplacian, plain, {count} landmarks": ("attention=laplacian", "{}", count) for count in (17, 8)},
    # The form of the paper's equation: landmarks that are means of queries ask, and the question is in one of them.
    "crossed W, 8 landmarks": ("attention=ablation", "{gram: cross}", 8),
    "crossed W, exact solve, 8 landmarks": ("attention=ablation", "{gram: cross, solver: cholesky}", 8),
    "gaussian, 17 landmarks": ("attention=ablation", "{qk_norm: true, kernel: gaussian}", 17),
    "mean over queries, 17 landmarks": ("attention=mean-over-queries", NORMALISED, 17),
    "nystromformer, 8 landmarks": ("attention=nystromformer", "{}", 8),
    "performer, 64 features": ("attention=performer", "{}", 64),
    "linear": ("attention=linear", "{}", 17),
    **CONTROLS,
}


def run(settings: Settings) -> Outcome:
    rows = train(settings, runs_of(settings))
    _draw(rows, settings.results / "recall.png")
    return judge(rows)


def runs_of(settings: Settings) -> list[Training]:
    """Seeds are the outer loop: a sweep that is stopped leaves complete pairs."""
    quick = QUICK if settings.quick else ()
    return [
        Training(
            "probe-recall",
            {"attention": name},
            (*quick, f"encoder.{mixer}", f"encoder.attention_args={arguments}", f"encoder.landmarks={landmarks}"),
            seed,
        )
        for seed in range(1 if settings.quick else settings.seeds or SEEDS)
        for name, (mixer, arguments, landmarks) in VARIANTS.items()
    ]


def judge(rows: Sequence[Row]) -> Outcome:
    found = compared(rows, "attention", STANDARD)
    worth = min(
        paired(accuracies(rows, "attention", STANDARD), accuracies(rows, "attention", name)) for name in CONTROLS
    )
    measured = (
        f"{variants.measured(rows, 'attention', STANDARD)} Softmax attention is worth {worth} points more than the "
        "better control."
    )
    if worth.mean < variants.MATTERS:
        return Outcome(measured, variants.DOES_NOT_MATTER)
    mean, margin = found[variants.best(rows, "attention", FEWER)][1]
    verdict: Verdict = "not confirmed at this scale"
    if mean + margin < 0:
        verdict = "disagrees"
    elif mean - margin > -variants.MATTERS:
        verdict = "agrees"
    return Outcome(measured, verdict)


def _draw(rows: Sequence[Row], path: Path) -> None:
    """The accuracy of every seed, and its mean."""
    drawn = new_figure(6.5, 4.2)
    axis = drawn.subplots()
    names = list(VARIANTS)
    for y, name in enumerate(names):
        values = accuracies(rows, "attention", name)
        axis.barh(y, summary(values).mean, color="#c6d8ea", height=0.7, label="_" if y else "mean")
        dots = {"marker": "o", "color": "#0072b2", "markersize": 4, "linestyle": "none"}
        axis.plot(values, [y] * len(values), **dots, label="_" if y else "one seed")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlim(0, 102)
    tidy(axis, x="held-out accuracy, %", y="")
    drawn.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save(drawn, path)
