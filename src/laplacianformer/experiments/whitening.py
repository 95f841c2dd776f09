"""The model with each kind of whitening of its kernel features, trained alike. Full whitening is m x m, not N x N."""

from collections.abc import Sequence

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings, Verdict
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.trainings import DEFAULT, compared, with_arguments

SOURCE: str = "beyond the paper, on its section on the injective map"
CLAIM: str = (
    "A diagonal estimate of the covariance keeps the effect of full whitening, which the paper could not afford. So it "
    "should be better than no whitening, and no worse than full whitening."
)
KINDS = {
    "running": DEFAULT,
    "none": with_arguments(whitening="null"),
    "instance": with_arguments(whitening="instance"),
    "full": with_arguments(whitening="full"),
}


def run(settings: Settings) -> Outcome:
    return judge(variants.compare(settings, "whitening", KINDS, "running"))


def judge(rows: Sequence[Row]) -> Outcome:
    found = compared(rows, "whitening", "running")
    none, full = found["none"][1], found["full"][1]
    beaten = (none.clear and none.mean > 0) or (full.clear and full.mean > 0)
    confirmed: Verdict = "agrees" if none.clear else "not confirmed at this scale"
    return variants.outcome(rows, "whitening", "running", "disagrees" if beaten else confirmed)
