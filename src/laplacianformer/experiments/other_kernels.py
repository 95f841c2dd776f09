"""The model with each kernel, trained alike: Laplacian, Gaussian, one between them, and two other families."""

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.trainings import DEFAULT, PLAIN, with_arguments

SOURCE: str = "the paper's future work"
CLAIM: str = (
    "The paper compares the Laplacian kernel only with the Gaussian and leaves cosine, polynomial and other kernels to "
    "future work. Checked here: the Laplacian is the most accurate of all."
)
OTHERS = ("gaussian", "matern", "cosine", "polynomial")
KERNELS = {
    "laplacian": DEFAULT,
    **{name: with_arguments(kernel=name) for name in OTHERS},
    "laplacian, plain": with_arguments(**PLAIN),
    **{f"{name}, plain": with_arguments(kernel=name, **PLAIN) for name in OTHERS},
}


def run(settings: Settings) -> Outcome:
    return variants.judge(variants.compare(settings, "kernel", KERNELS, "laplacian"), "kernel", "laplacian")
