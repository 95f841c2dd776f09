import json
import os
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from tests.schedule import slow_first

# Some virtual machines announce AMX and then die with SIGILL in a bfloat16 product; torch must not be imported yet.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# onnxruntime, which some tests import by themselves, reads it on import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# Compile in this process: a pool of compilers, each of which imports torch, takes longer than small graphs do.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


# In a process that has imported the libraries, and nothing of this package.
FRESH = """
import json, os, sys, torch, timm

def run(output, environment, code):
    os.environ.update(json.loads(environment))
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    exec(code, {"__name__": "__main__"})
"""


@pytest.fixture(scope="session")
def run_fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Runs code in a process of its own, with variables of the environment, where the import of this package takes a
    fraction of a second, and returns what it prints; an error is a failure."""
    from tests.training.helpers import forking

    folder = tmp_path_factory.mktemp("fresh")
    with forking(FRESH, PYTHONPATH=os.pathsep.join(filter(None, sys.path))) as call:

        def run(code: str, **environment: str) -> str:
            output = folder / f"{len(list(folder.iterdir()))}.txt"
            ended = call(output, json.dumps(environment), code)
            assert ended == 0, output.read_text()
            return output.read_text()

        yield run


@pytest.hookimpl(trylast=True)  # after the tests that are not asked for were left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        items[:] = slow_first(items, workers, lambda item: "slow" in item.keywords, lambda item: item.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Generator[None, Any, Any]:
    """What a test printed may hold bytes that are not UTF-8; reports travel between processes as UTF-8 alone."""
    report = yield
    report.sections = [(_as_utf8(title), _as_utf8(text)) for title, text in report.sections]
    if report.longrepr is not None and not isinstance(report.longrepr, tuple):
        text = str(report.longrepr)
        if text != _as_utf8(text):
            report.longrepr = _as_utf8(text)
    return report


def _as_utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
