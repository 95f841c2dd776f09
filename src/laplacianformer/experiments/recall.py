"""Associative recall by token mixer and by number of landmarks: where all tokens differ from their neighbours."""

from collections.abc import Sequence

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings, Verdict
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.statistics import paired
from laplacianformer.experiments.sweep import Training
from laplacianformer.experiments.trainings import QUICK, accuracies, compared, train

SOURCE: str = "beyond the paper, whose landmarks are means of neighbouring tokens"
CLAIM: str = (
    "Comparing every token with landmarks stands for comparing it with every token. So with 8 landmarks for 17 tokens, "
    "Laplacian attention should recall as much as softmax attention does."
)
SEEDS = 2
STANDARD, FEWER = "softmax", "laplacian, 8 landmarks"
CONTROLS = {"mean of all tokens": ("attention=mean", "{}", 17), "none": ("attention=none", "{}", 17)}
# Name of a variant: the token mixer, its arguments, and the number of landmarks or features. 17 tokens need no solve.
NORMALISED = "{qk_norm: true}"
VARIANTS = {
    STANDARD: ("attention=softmax", "{}", 17),
    **{f"laplacian, {count} landmarks": ("attention=laplacian", NORMALISED, count) for count in (17, 12, 8, 4)},
    "laplacian, plain, 17 landmarks": ("attention=laplacian", "{}", 17),
    "gaussian, 17 landmarks": ("attention=ablation", "{qk_norm: true, kernel: gaussian}", 17),
    "mean over queries, 17 landmarks": ("attention=mean-over-queries", NORMALISED, 17),
    "nystromformer, 8 landmarks": ("attention=nystromformer", "{}", 8),
    "performer, 64 features": ("attention=performer", "{}", 64),
    "linear": ("attention=linear", "{}", 17),
    **CONTROLS,
}


def run(settings: Settings) -> Outcome:
    rows = train(settings, runs_of(settings))
    variants.draw(rows, "attention", STANDARD, {}, settings.results / "recall.png")
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
    fewer = found[FEWER][1]
    verdict: Verdict = "disagrees" if fewer.clear and fewer.mean < 0 else "agrees"
    return Outcome(measured, verdict)
