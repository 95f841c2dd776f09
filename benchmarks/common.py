"""What the benchmarks share: interleaved timing, and a description of where and on what they ran."""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch


def interleaved(functions: dict[str, Callable[[], object]], seconds: float = 2.0, rounds: int = 5) -> dict[str, Any]:
    """Time functions in turn, so that what else the machine does meets all of them alike.

    Goes round for about `seconds` a function, and at least `rounds` times. A function that takes a
    millisecond or less is called several times a round.

    Returns:
        For each name its median, its fastest time and its number of rounds, and, over all of them, the time of the
        CPUs over the time on the wall. Where that is far below the number of threads, others were busy.
    """
    repeats = {}
    for name, function in functions.items():
        function()
        start = time.perf_counter()
        function()
        repeats[name] = max(1, int(1e-3 / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in functions}
    cpu, wall = time.process_time(), time.perf_counter()
    while len(times[next(iter(times))]) < rounds or time.perf_counter() - wall < seconds * len(functions):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                function()
            times[name].append((time.perf_counter() - start) / repeats[name])
    occupancy = (time.process_time() - cpu) / (time.perf_counter() - wall)
    table = {
        name: {"median_ms": statistics.median(t) * 1e3, "fastest_ms": min(t) * 1e3, "rounds": len(t)}
        for name, t in times.items()
    }
    return {"times": table, "cpu_over_wall": occupancy}


def environment() -> dict[str, Any]:
    """Machine, versions, commit and date: what a measured number needs beside it."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _output("git", "describe", "--always", "--dirty", "--abbrev=12"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def save(folder: Path, name: str, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
