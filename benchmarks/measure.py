"""Time and memory, measured so that they can be compared: interleaved rounds, and peaks in a process of their own."""

import ctypes
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], Any]


def keep_freed_memory() -> None:
    """Make malloc keep what is freed, as it does in a process that has run for a while.

    Otherwise results of some megabytes come fresh from the system on every call, which costs as much as a kernel does,
    for everyone alike.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc
        library.mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def interleaved(functions: dict[str, Call], seconds: float, rounds: int = 5, device: str = "cpu") -> dict[str, Any]:
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


def peak_memory(call: Call, device: str = "cpu") -> float:
    """Megabytes that this process needs at the peak of a call beyond what it had before: of the GPU, or on Linux."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - allocated) / 2**20
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
