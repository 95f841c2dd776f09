"""Worker processes of a DataLoader that end when the process that started them is gone."""

import multiprocessing
import os
import threading
import time
from typing import Any

_SECONDS = 1.0  # between two looks at the parent


def worker_options(workers: int) -> dict[str, Any]:
    """Options of every DataLoader: the number of its processes, and what they do at their start."""
    return {"num_workers": workers, "worker_init_fn": end_with_parent}


def end_with_parent(_: int) -> None:
    """In a worker: watch the parent from a thread.

    torch's own watch works only while a worker waits for an index: one that is stuck in a slow file system, or that
    waits for somebody to take its results, stayed behind when its parent was killed.
    """
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(owner: int) -> None:
    parent = multiprocessing.parent_process()
    while os.getppid() == owner and (parent is None or parent.is_alive()):
        time.sleep(_SECONDS)
    os._exit(1)  # without cleaning up, which would wait for the same
