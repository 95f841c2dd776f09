"""The model with each kernel, trained alike: Laplacian, Gaussian, one between them, and two other families."""

from collections.abc import Sequence

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.trainings import CONTROLS, DEFAULT, NORMALISED, with_arguments

SOURCE: str = "the paper's future work"
CLAIM: str = (
    "The paper compares the Laplacian kernel only with the Gaussian and leaves cosine, polynomial and other kernels to "
    "future work. Checked here: the Laplacian is the most accurate of all."
)
OTHERS = ("gaussian", "matern", "cosine", "polynomial")
FORMS = ("laplacian", "laplacian, normalised")
KERNELS = {
    FORMS[0]: DEFAULT,
    **{name: with_arguments(kernel=name) for name in OTHERS},
    FORMS[1]: with_arguments(**NORMALISED),
    **{f"{name}, normalised": with_arguments(kernel=name, **NORMALISED) for name in OTHERS},
}


def run(settings: Settings) -> Outcome:
    return judge(variants.compare(settings, "kernel", KERNELS, "laplacian"))


def judge(rows: Sequence[Row]) -> Outcome:
    """The Laplacian kernel in its better form, against every form of every other kernel."""
    names = list(dict.fromkeys(row["kernel"] for row in rows))
    others = [name for name in names if name not in (*FORMS, *CONTROLS)]
    best = variants.best(rows, "kernel", [form for form in FORMS if form in names])
    return variants.judge(rows, "kernel", best, others)
