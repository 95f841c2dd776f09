"""Where a number comes from: commit, machine, date and versions, for every row in results/."""

import datetime
import platform
import subprocess
from pathlib import Path

import torch


def provenance(device: str = "cpu") -> dict[str, str]:
    cpu = f"{_processor()}, {torch.get_num_threads()} threads"
    return {
        "commit": _commit(),
        "machine": cpu if device == "cpu" else torch.cuda.get_device_name(),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
    }


def _commit() -> str:
    """The short hash, with a + where tracked files have changed since."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/src", ":/csrc", ":/benchmarks")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
