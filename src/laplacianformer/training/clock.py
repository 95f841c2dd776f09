"""Where the time of a row of metrics goes."""

from time import monotonic


class Clock:
    """Seconds of wall time since the last row, and how many of them were spent waiting for images."""

    def __init__(self) -> None:
        self.seconds = self.waited = 0.0
        self.last = monotonic()

    def skip(self) -> float:
        """What passed since the last call of any kind; it counts for nothing."""
        now = monotonic()
        passed, self.last = now - self.last, now
        return passed

    def count(self) -> None:
        """What passed was training."""
        self.seconds += self.skip()

    def wait(self) -> None:
        """What passed was waiting for images."""
        passed = self.skip()
        self.seconds += passed
        self.waited += passed

    def restart(self) -> None:
        """A row was written."""
        self.seconds = self.waited = 0.0
