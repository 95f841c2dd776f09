"""The model with each solver of the linear system of the landmarks, trained alike."""

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.trainings import DEFAULT, with_arguments

SOURCE: str = "Table 3, left"
CLAIM: str = (
    "Newton-Schulz gives a more accurate model than conjugate gradients: 81.4 against 79.2 % (tiny) and 83.8 against "
    "81.4 % (small) on ImageNet."
)
# Six steps of each, except for the exact solve and for the authors' released ops, whose timings suggest 15 to 20 steps.
SOLVERS = {
    "Newton-Schulz": DEFAULT,
    "the authors' ops": with_arguments(start="authors", gradient="implicit", iterations=20),
    "conjugate gradients": with_arguments(solver="conjugate_gradient"),
    "ridge (Cholesky)": with_arguments(solver="cholesky"),
}
REPORTED = {"tiny": {"conjugate gradients": 79.2 - 81.4}, "small": {"conjugate gradients": 81.4 - 83.8}}


def run(settings: Settings) -> Outcome:
    rows = variants.compare(settings, "solver", SOLVERS, "Newton-Schulz", REPORTED)
    return variants.judge(rows, "solver", "Newton-Schulz", ["conjugate gradients"])
