"""The model with each kernel, trained alike: between the Laplacian and the Gaussian, and of other families."""

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.trainings import DEFAULT, one_argument

SOURCE = "the paper's future work"
CLAIM = (
    "The paper compares the Laplacian kernel with the Gaussian alone and leaves cosine, polynomial and other kernels "
    "open. Checked here: the Laplacian is the most accurate of all."
)
KERNELS = {
    "laplacian": DEFAULT,
    **{name: one_argument("kernel", name) for name in ("gaussian", "matern", "cosine", "polynomial")},
}


def run(settings: Settings) -> Outcome:
    return variants.judge(variants.compare(settings, "kernel", KERNELS, "laplacian"), "kernel", "laplacian")
