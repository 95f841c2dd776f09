"""The command `demo` in a process of its own, which reports the files it writes and the addresses it uses."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers import save_small

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
AUDITED = """
import os, signal, sys

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup, which ignores it

report = open(sys.argv[1], "w", buffering=1)

def note(event, arguments):
    if event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        print("write", arguments[0], file=report)
    elif event == "os.mkdir":
        print("write", arguments[0], file=report)
    elif event in ("os.rename", "os.symlink", "os.link"):
        print("write", arguments[1], file=report)
    elif event in ("socket.bind", "socket.connect") and isinstance(arguments[1], tuple):
        print(event, arguments[1][0], file=report)
    elif event in ("socket.getaddrinfo", "socket.gethostbyname") and arguments[0] not in (None, "127.0.0.1"):
        print(event, arguments[0], file=report)

sys.addaudithook(note)
from laplacianformer.cli import main
main(["demo", "--weights", sys.argv[2], "--port", sys.argv[3]])
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Running:
    address: str
    root: Path  # with the folders home, temporary, working and torch, and the report
    process: subprocess.Popen

    def end(self, number=signal.SIGTERM):
        """End it as a service manager would, and give the lines of its report."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(30)
        return self.report()

    def report(self):
        return (self.root / "report").read_text().splitlines()

    def wait(self):
        until = time.monotonic() + 120
        while f"The page is at {self.address}" not in (self.root / "stderr").read_text():
            assert self.process.poll() is None, (self.root / "stderr").read_text()
            assert time.monotonic() < until, "it did not start"
            time.sleep(0.1)


def start(root, save=save_small):
    for name in ("home", "temporary", "working"):
        (root / name).mkdir()
    save(root / "model.safetensors")
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "HOME": str(root / "home"), "TMPDIR": str(root / "temporary")}
    environment |= {"PYTHONPATH": f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    # Importing torch makes an empty folder for what it may compile, in every command: it is apart from the others here.
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(root / "torch")}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("MPLCONFIGDIR", None)
    port = free_port()
    command = [sys.executable, "-c", AUDITED, str(root / "report"), str(root / "model.safetensors"), str(port)]
    with (root / "stderr").open("w") as errors:
        process = subprocess.Popen(command, cwd=root / "working", env=environment, stderr=errors)
    return Running(f"http://127.0.0.1:{port}/", root, process)


@pytest.fixture(scope="session")
def started():
    """The one that runs, if any, is the last of them."""
    all_of_them = []
    yield all_of_them
    for one in all_of_them:
        one.end()


@pytest.fixture
def running(started, tmp_path_factory):
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'laplacianformer[page]'")
    if not started or started[-1].process.poll() is not None:
        started.append(start(tmp_path_factory.mktemp("running")))
        started[-1].wait()
    return started[-1]


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium, or another."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("needs a chromium in PATH")
    with api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield found
        found.close()
