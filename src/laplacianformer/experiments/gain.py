"""The model with different gains of the whitened part of its attention, trained alike.

The probe has m = 49 landmarks, so sqrt(m) is 7.
"""

from collections.abc import Sequence

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.trainings import DEFAULT, compared, with_arguments

SOURCE: str = "beyond the paper, which gives no gain"
CLAIM: str = (
    "A gain of sqrt(m) makes the part of the output that depends on the query about as large as the values. So it "
    "should be more accurate than a gain of 1, and no less accurate than larger gains or one learned per head."
)
DEFAULT_GAIN = "gain sqrt(m)"
GAINS = {
    DEFAULT_GAIN: DEFAULT,
    **{f"gain {gain}": with_arguments(gain=gain) for gain in (1, 3, 14, 28)},
    "gain learned": with_arguments(gain="learned"),
}


def run(settings: Settings) -> Outcome:
    return judge(variants.compare(settings, "gain", GAINS, DEFAULT_GAIN))


def judge(rows: Sequence[Row]) -> Outcome:
    found = {name: difference for name, (_, difference) in compared(rows, "gain", DEFAULT_GAIN).items()}
    if any(difference.clear and difference.mean > 0 for difference in found.values()):
        return variants.outcome(rows, "gain", DEFAULT_GAIN, "disagrees")
    return variants.outcome(rows, "gain", DEFAULT_GAIN, variants.verdict_of_parts([found["gain 1"].clear]))
