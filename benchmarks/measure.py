"""Time and memory, measured so that they can be compared: interleaved rounds, and peaks in a process of their own."""

import ctypes
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Call = Callable[[], Any]


def interleaved(
    calls: dict[str, Call], *, seconds: float = 5.0, least: int = 5, most: int = 100
) -> dict[str, list[float]]:
    """Milliseconds of each call, round by round: every round makes each call once, so that noise hits all alike."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for done in range(most):
        if done >= least and time.perf_counter() > end:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """The median over rounds of one call's time over another's in the same round."""
    return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))


def peak_memory(call: Call) -> float:
    """Megabytes that this process needs at the peak of a call beyond what it had before. Linux only."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use now
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1024


def in_child(function: Call) -> Any:
    """The result of `function` in a forked process, which starts with no threads and ends with all its memory."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(function()))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the measured process ended with code {process.exitcode}") from None
    finally:
        process.join()


def _status(field: str) -> int:
    """Kilobytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1))
