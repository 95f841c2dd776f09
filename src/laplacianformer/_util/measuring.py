"""Time and peak memory, measured so that they can be compared.

Functions are timed in interleaved rounds, so that other load on the machine affects all of them alike. Peak memory is
that of one call, best measured in a process of its own (`in_child`), which starts without freed memory to reuse.
"""

import ctypes
import multiprocessing
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

Call = Callable[[], Any]
Result = TypeVar("Result")
TURN = (
    5e-3  # seconds: a function is called this long before the next one has its turn, or once if one call takes longer
)
STATUS = Path("/proc/self/status")


class ProcessKilled(RuntimeError):
    """The operating system ended a measured process, most often because memory ran out."""


def interleaved(functions: Mapping[str, Call], seconds: float, rounds: int = 5, device: str = "cpu") -> dict[str, Any]:
    """Time functions in turn.

    Takes about `seconds` per function, and at least `rounds` rounds. Each round begins with a different function: a
    machine is not in the same state after an idle and after a busy rival. A function is called as often as fits into
    `TURN`, so that the overhead of a turn is the same for short and long functions. A turn of a short function begins
    with an untimed call, after which caches and freed memory are as the function itself leaves them. A turn on a GPU
    ends when the GPU has finished.

    Returns:
        "times": for each name its median, its fastest time and its number of rounds. "each": its time in each round.
        "cpu_over_wall": CPU time over wall-clock time. Far below the number of threads, other processes were busy.
    """
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    repeats = {name: _repeats(function, wait) for name, function in functions.items()}
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
    """How many times longer one function takes than another: the median of the ratios within each round."""
    return statistics.median(a / b for a, b in zip(each[name], each[base], strict=True))


def keep_freed_memory() -> None:
    """Make malloc keep what is freed, as it does in a process that has run for a while.

    Otherwise every result of a few megabytes is requested from the operating system anew, which takes as long as a
    kernel, for every method alike.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc
        library.mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def peak_memory(call: Call, device: str = "cpu") -> float:
    """Megabytes that a call needs at its peak beyond what was in use before it: on the GPU, or in this process.

    On the CPU this reads /proc, so Linux only.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - allocated) / 2**20
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is in use now
    before = _kilobytes(STATUS, "VmRSS")
    call()
    return (_kilobytes(STATUS, "VmHWM") - before) / 1024


def limit_memory(fraction: float) -> None:
    """Let this process take at most this fraction of the free memory: allocating more raises instead of swapping."""
    import resource  # not on Windows

    free = int(_kilobytes(Path("/proc/meminfo"), "MemAvailable") * 1024 * fraction)
    in_use = _kilobytes(STATUS, "VmData") * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (in_use + free, resource.RLIM_INFINITY))


def in_child(function: Callable[[], Result], *, preload: str | None = None) -> Result:
    """The result of `function` in a process of its own, which ends with all its memory.

    Args:
        function: what to call.
        preload: a module that a fork server imports first; the process is forked from that server, and `function` has
            to be picklable. Without it the process is forked from this one, which must not have started threads yet.

    Raises:
        ProcessKilled: the operating system ended the process.
        RuntimeError: `function` raised; the traceback is on the standard error.
    """
    context: Any = multiprocessing.get_context("forkserver" if preload else "fork")
    if preload:
        context.set_forkserver_preload([preload])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function))
    process.start()
    sender.close()
    try:
        result: Result = receiver.recv()
    except EOFError:
        process.join()
        kind = ProcessKilled if process.exitcode < 0 else RuntimeError
        raise kind(f"the measured process ended with code {process.exitcode}") from None
    finally:
        receiver.close()
        process.join()
    return result


def _send(sender: Any, function: Call) -> None:
    sender.send(function())


def _repeats(function: Call, wait: Call) -> int:
    """How often a function is called per turn; the first call, which may compile, is not timed."""
    function()
    wait()
    start = time.perf_counter()
    function()
    wait()
    return max(1, int(TURN / max(time.perf_counter() - start, 1e-7)))


def _kilobytes(file: Path, field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", file.read_text())
    assert found is not None
    return int(found.group(1))
