"""Worker processes don't outlive the process that started them."""

import os
import select
import signal
from pathlib import Path

import pytest

from ..training import helpers

# Workers that are stuck in reading, or in giving away what was read and is not taken.
START = """
import sys, threading, time
from torch.utils.data import DataLoader, Dataset
from laplacianformer.data._workers import worker_options

class Images(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if sys.argv[1] == "reading":
            threading.Event().wait()
        return "x" * 300_000

batches = iter(DataLoader(Images(), 4, collate_fn=list, **worker_options(2)))
if sys.argv[1] == "giving":
    next(batches)
print(*[worker.pid for worker in batches._workers], flush=True)
threading.Event().wait()
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for the end of processes of others")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("stuck", ["reading", "giving"])
@pytest.mark.slow
def test_workers_end_within_seconds_of_a_killed_parent(tmp_path: Path, stuck: str) -> None:
    (tmp_path / "start.py").write_text(START)
    with helpers.python([str(tmp_path / "start.py"), stuck]) as process:
        assert process.stdout is not None
        workers = [os.pidfd_open(int(pid)) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        assert not select.select(workers, [], [], 0)[0], "they are there"
        os.kill(process.pid, signal.SIGKILL)
        try:
            for worker in workers:
                assert select.select([worker], [], [], 20)[0], f"a worker that was {stuck} is still there"
        finally:
            for worker in workers:
                os.close(worker)
