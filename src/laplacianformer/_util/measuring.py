"""Times that can be compared: functions called in turn, so that what else a machine does meets all of them alike."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Call = Callable[[], Any]
TURN = 5e-3  # seconds that a function is called for before it is another's turn, or one call if that is longer


def interleaved(functions: Mapping[str, Call], seconds: float, rounds: int = 5, device: str = "cpu") -> dict[str, Any]:
    """Time functions in turn, so that what else the machine does meets all of them alike.

    Goes round for about `seconds` a function, and at least `rounds` times, each round beginning with another function:
    after an idle or a busy rival, a machine is not the same. A function is called as often as fits into `TURN`, so that
    what a turn begins with counts alike for short and for long ones. A turn of a short one begins with a call that is
    not timed: it then finds caches and freed memory as it left them itself. A turn on a GPU ends with the
    GPU's work.

    Returns:
        "times": for each name its median, its fastest time and its number of rounds. "each": its time in each round.
        "cpu_over_wall": the time of the CPUs over the time on the wall. Where that is far below the number of threads,
        others were busy.
    """
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    repeats = {}
    for name, function in functions.items():
        function()
        wait()
        start = time.perf_counter()
        function()
        wait()
        repeats[name] = max(1, int(TURN / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in functions}
    order = deque(functions.items())
    cpu, wall = time.process_time(), time.perf_counter()
    while len(times[next(iter(times))]) < rounds or time.perf_counter() - wall < seconds * len(functions):
        order.rotate(-1)
        for name, function in order:
            if repeats[name] > 1:
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
    return {"times": table, "each": times, "cpu_over_wall": occupancy}


def quotient(each: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """How many times longer one function takes than another: the median over the rounds, where both met the same."""
    return statistics.median(a / b for a, b in zip(each[name], each[base], strict=True))
