"""The experiment "lambda": the model with different scales of the Laplacian kernel, trained alike."""

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.trainings import DEFAULT, with_arguments

SOURCE: str = "Table 3, right"
CLAIM: str = (
    "lambda = 4 is best: smaller values suppress distant tokens, larger ones blur (79.4, 79.6, 80.1, 81.4, 78.5 % on "
    "ImageNet for 0.5, 1, 2, 4, 8)."
)
ACCURACIES = {"0.5": 79.4, "1": 79.6, "2": 80.1, "4": 81.4, "8": 78.5}
SCALES = {scale: DEFAULT if scale == "4" else with_arguments(scale=scale) for scale in ACCURACIES}
COMPARED = {f"lambda = {scale}": changes for scale, changes in SCALES.items()}
REPORTED = {"tiny": {scale: accuracy - ACCURACIES["4"] for scale, accuracy in ACCURACIES.items()}}


def run(settings: Settings) -> Outcome:
    reported = {
        size: {f"lambda = {scale}": points for scale, points in found.items()} for size, found in REPORTED.items()
    }
    rows = variants.compare(settings, "scale", COMPARED, "lambda = 4", reported)
    return variants.judge(rows, "scale", "lambda = 4", forms=list(COMPARED))
