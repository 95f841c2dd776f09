"""Times that can be compared: functions called in turn, so that what else a machine does meets all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

Call = Callable[[], Any]


def interleaved(functions: Mapping[str, Call], seconds: float, rounds: int = 5) -> dict[str, float]:
    """The median time of each, in milliseconds, of at least so many rounds and seconds altogether.

    Each turn begins with a call that is not timed. A function that takes less than a millisecond is called several
    times a turn. On a GPU, a turn ends when the GPU has finished.
    """
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    times: dict[str, list[float]] = {name: [] for name in functions}
    repeats = dict.fromkeys(functions, 1)
    began = time.perf_counter()
    while len(times[next(iter(times))]) < rounds or time.perf_counter() - began < seconds:
        for name, function in functions.items():
            function()
            wait()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                function()
            wait()
            each = (time.perf_counter() - start) / repeats[name]
            times[name].append(1e3 * each)
            repeats[name] = max(1, int(1e-3 / max(each, 1e-6)))
    return {name: statistics.median(found) for name, found in times.items()}
