"""Times that can be compared: functions called in turn, so that what else a machine does meets all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

Call = Callable[[], Any]


def interleaved(functions: Mapping[str, Call], seconds: float, rounds: int = 5, device: str = "cpu") -> dict[str, Any]:
    """Time functions in turn, so that what else the machine does meets all of them alike.

    Goes round for about `seconds` a function, and at least `rounds` times. Each turn begins with a call that is not
    timed: a function then finds caches and freed memory as it left them itself, not as a rival did. A function that
    takes a millisecond or less is called several times a turn. On a GPU, a turn ends when the GPU has finished.

    Returns:
        For each name its median, its fastest time and its number of rounds, and, over all of them, the time of the
        CPUs over the time on the wall. Where that is far below the number of threads, others were busy.
    """
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    repeats = {}
    for name, function in functions.items():
        function()
        wait()
        start = time.perf_counter()
        function()
        wait()
        repeats[name] = max(1, int(1e-3 / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in functions}
    cpu, wall = time.process_time(), time.perf_counter()
    while len(times[next(iter(times))]) < rounds or time.perf_counter() - wall < seconds * len(functions):
        for name, function in functions.items():
            function()
            wait()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                function()
            wait()
            times[name].append((time.perf_counter() - start) / repeats[name])
    occupancy = (time.process_time() - cpu) / (time.perf_counter() - wall)
    table = {
        name: {"median_ms": statistics.median(t) * 1e3, "fastest_ms": min(t) * 1e3, "rounds": len(t)}
        for name, t in times.items()
    }
    return {"times": table, "cpu_over_wall": occupancy}
