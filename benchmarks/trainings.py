"""What the benchmarks that train share: commands that continue where they were stopped, and what they cost.

`laplacianformer.experiments.sweep` is for many trainings at a time, compared by their accuracy in one table. Here the
question is what a command of any kind (`convert`, `eval`) costs in all, over every start of it: one at a time.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = ("-m", "laplacianformer")


def spent(folder: Path, *arguments: str, ending: str = "", program: tuple[str, ...] = PROGRAM) -> float:
    """Run a command into a folder to its end, unless that was done, and give the CPU seconds that it took in all: also
    those of processes that were stopped. `program` is what Python is started with."""
    folder.mkdir(parents=True, exist_ok=True)
    record, log = folder / "cost.json", folder.with_name(f"{folder.name}.log")
    before = json.loads(record.read_text()) if record.exists() else {"cpu_seconds": 0.0, "finished": False}
    if before["finished"]:
        return float(before["cpu_seconds"])
    total = before["cpu_seconds"]
    command = [sys.executable, *program, *arguments, "--output", f"{folder}{ending}"]
    with log.open("ab") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": "1"})
        while child.poll() is None:
            total = before["cpu_seconds"] + cpu_seconds(child.pid)
            record.write_text(json.dumps({"cpu_seconds": total, "finished": False}))
            time.sleep(1)
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments[:2])} ended with an error: see {log}")
    record.write_text(json.dumps({"cpu_seconds": total, "finished": True}))
    return total


def cpu_seconds(process: int) -> float:
    """What a process, all its threads together, has used so far."""
    numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")  # in user and in kernel mode
