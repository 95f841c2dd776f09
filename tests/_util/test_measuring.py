import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from laplacianformer._util.measuring import ProcessKilled, in_child, interleaved, limit_memory, peak_memory, quotient

needs_linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
MODULE = "laplacianformer._util.measuring"  # what the fork server imports


def test_functions_are_timed_in_turn_and_each_round_begins_with_another() -> None:
    calls: list[str] = []

    def named(name: str, seconds: float) -> None:
        calls.append(name)
        time.sleep(seconds)

    functions = {name: partial(named, name, seconds) for name, seconds in (("a", 0.006), ("b", 0.018), ("c", 0.006))}
    found = interleaved(functions, seconds=0, rounds=3)
    assert "".join(calls) == "aabbcc" + "bca" + "cab" + "abc"
    assert [times["rounds"] for times in found["times"].values()] == [3, 3, 3]
    assert found["times"]["a"]["fastest_ms"] <= found["times"]["a"]["median_ms"]
    assert quotient(found["each"], "b", "a") > 1.2


def test_the_quotient_is_the_median_of_the_ratios_of_each_round() -> None:
    assert quotient({"slow": [2.0, 30.0, 4.0], "fast": [1.0, 10.0, 1.0]}, "slow", "fast") == 3.0


@pytest.mark.slow
@needs_linux
def test_the_peak_counts_what_was_freed_before_the_end_and_not_what_was_there() -> None:
    assert 60 < in_child(_measured_peak, preload=MODULE) < 80


def _measured_peak() -> float:
    kept = torch.ones(50 * 2**18)

    def call() -> None:
        torch.ones(64 * 2**18).sum()

    megabytes = peak_memory(call)
    assert len(kept)
    return megabytes


@needs_linux
@pytest.mark.slow
def test_a_process_with_limited_memory_raises_instead_of_taking_all() -> None:
    assert in_child(_exceeds_limit, preload=MODULE) == "refused"


def _exceeds_limit() -> str:
    limit_memory(1e-6)
    try:
        torch.ones(256 * 2**18)
    except RuntimeError:
        return "refused"
    return "granted"


@pytest.mark.slow
def test_a_killed_process_is_told_from_one_that_raised() -> None:
    with pytest.raises(ProcessKilled, match="code -9"):
        in_child(_kill_itself, preload=MODULE)
    with pytest.raises(RuntimeError, match="code 1") as raised:
        in_child(_raise, preload=MODULE)
    assert not isinstance(raised.value, ProcessKilled)


def _kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise ValueError
