"""How the time between two rows of metrics is spent."""

from time import monotonic


class Clock:
    """Seconds of wall time since the last row, and how many of them were spent waiting for images.

    Each call looks at the time that passed since the call before.
    """

    def __init__(self) -> None:
        self.seconds = self.waited = 0.0
        self.last = monotonic()

    def skip(self) -> float:
        """It is not counted. Returns its seconds."""
        now = monotonic()
        passed, self.last = now - self.last, now
        return passed

    def count(self) -> None:
        """It was spent on training."""
        self.seconds += self.skip()

    def wait(self) -> None:
        """It was spent waiting for images, which is part of training."""
        passed = self.skip()
        self.seconds += passed
        self.waited += passed

    def restart(self) -> None:
        """A row was written."""
        self.seconds = self.waited = 0.0
