"""Time and memory, measured so that they can be compared: interleaved rounds, and peaks in a process of their own."""

import ctypes
import multiprocessing
import re
from pathlib import Path
from typing import Any

import torch

from laplacianformer._util.measuring import Call
from laplacianformer._util.measuring import interleaved as interleaved
from laplacianformer._util.measuring import quotient as quotient


def keep_freed_memory() -> None:
    """Make malloc keep what is freed, as it does in a process that has run for a while.

    Otherwise results of some megabytes come fresh from the system on every call, which costs as much as a kernel does,
    for everyone alike.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc
        library.mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


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
