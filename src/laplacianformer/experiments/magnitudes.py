"""The model with what keeps magnitudes independent of the size of the kernel, one at a time and together."""

from collections.abc import Sequence

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.trainings import DEFAULT, NORMALISED, compared, with_arguments

SOURCE: str = "beyond the paper, which says nothing of kernels that become small"
CLAIM: str = (
    "Where the kernel has become small, the eps of the whitening caps its factor, and the values of the landmarks "
    "shrink. So a relative eps, normalised landmark values, and normalised queries and keys should each be more "
    "accurate than none of them."
)
RELATIVE: dict[str, object] = {"relative_eps": 1e-4}
VALUES: dict[str, object] = {"normalised_values": "true"}
NONE = "none"
CHOICES = {
    NONE: DEFAULT,
    "relative eps": with_arguments(**RELATIVE),
    "normalised values": with_arguments(**VALUES),
    "normalised values, gain 1": with_arguments(**VALUES, gain=1),
    "normalised queries and keys": with_arguments(**NORMALISED),
    "all three": with_arguments(**NORMALISED, **RELATIVE, **VALUES),
}


def run(settings: Settings) -> Outcome:
    return judge(variants.compare(settings, "magnitudes", CHOICES, NONE))


def judge(rows: Sequence[Row]) -> Outcome:
    """What is said of each of the three alone; the other arms are there to be read."""
    found = compared(rows, "magnitudes", NONE)
    alone = [found[name][1] for name in ("relative eps", "normalised values", "normalised queries and keys")]
    better = [difference.clear and difference.mean > 0 for difference in alone]
    worse = any(difference.clear and difference.mean < 0 for difference in alone)
    verdict = "disagrees" if worse and not any(better) else variants.verdict_of_parts(better)
    return variants.outcome(rows, "magnitudes", NONE, verdict, list(CHOICES))
