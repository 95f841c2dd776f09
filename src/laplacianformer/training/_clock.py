"""How the time between two rows of metrics is spent."""

from time import monotonic


class Clock:
    """Seconds of wall time since the last row, and how many of them were spent waiting for images.

    Each method says what the time since the call before it was spent on.
    """

    def __init__(self) -> None:
        self.seconds = self.waited = 0.0
        self.last = monotonic()

    def skip(self) -> float:
        """It was spent on something that doesn't count. Returns the seconds."""
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
        """Start again from 0: a row was written."""
        self.seconds = self.waited = 0.0
