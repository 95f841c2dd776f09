"""What can be said from a few seeds: means, standard deviations, and differences larger than the noise."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Two-sided 95 % points of Student's t, by degrees of freedom 1, 2, ...
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


class Summary(NamedTuple):
    """Mean and standard deviation of a sample."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


def summary(values: Sequence[float]) -> Summary:
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan)


class PairedDifference(NamedTuple):
    """The mean of paired differences, and half the width of its 95 % confidence interval."""

    mean: float
    margin: float

    @property
    def clear(self) -> bool:
        """Whether zero lies outside the interval."""
        return abs(self.mean) > self.margin

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.margin:.2f}"


def paired(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """`first` minus `second`, paired (by seed or image); from one pair, nothing is clear."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    count = len(differences)
    if count < 2:
        return PairedDifference(differences[0], math.inf)
    point = STUDENT[min(count - 1, len(STUDENT)) - 1]
    return PairedDifference(statistics.fmean(differences), point * statistics.stdev(differences) / math.sqrt(count))
