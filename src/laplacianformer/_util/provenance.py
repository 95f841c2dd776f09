"""Where a number comes from: commit, machine, date and versions, for every row in results/."""

import datetime
import platform
import subprocess
from pathlib import Path

import torch


def provenance(device: str = "cpu", threads: int | None = None) -> dict[str, str]:
    """Commit, machine, date and torch version. `threads`: those of the measured process, if it is another one."""
    cpu = f"{_processor()} ({torch.backends.cpu.get_cpu_capability()}), {threads or torch.get_num_threads()} threads"
    return {
        "commit": commit(),
        "machine": cpu if device == "cpu" else torch.cuda.get_device_name(),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
    }


def commit() -> str:
    """The commit hash of the code, with a + if it has changed since; "unknown" for an installed package."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here.parent, capture_output=True, text=True).stdout.strip()

    try:
        if not git("ls-files", here.name):  # not this project's repository, or none
            return "unknown"
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/src", ":/csrc", ":/benchmarks")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except OSError:  # no git
        return "unknown"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
