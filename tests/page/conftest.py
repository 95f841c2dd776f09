"""The command `demo` in a process of its own, which reports the files it writes and the addresses it uses."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers import save_small

AUDITED = """
import os, sys

report = open(sys.argv[1], "w", buffering=1)

def note(event, arguments):
    if event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        print("write", arguments[0], file=report)
    elif event in ("os.mkdir", "os.rename", "os.symlink", "os.link"):
        print("write", arguments[-1 if event == "os.link" else 0], file=report)
    elif event in ("socket.bind", "socket.connect") and isinstance(arguments[1], tuple):
        print(event, arguments[1][0], file=report)

sys.addaudithook(note)
from laplacianformer.cli import main
main(["demo", "--weights", sys.argv[2], "--port", sys.argv[3]])
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    """Its address and folders. `end()` ends it and returns the lines of its report."""
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'laplacianformer[page]'")
    root = tmp_path_factory.mktemp("running")
    for name in ("home", "temporary", "working"):
        (root / name).mkdir()
    save_small(root / "model.safetensors")
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

    def end():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        return (root / "report").read_text().splitlines()

    address = f"http://127.0.0.1:{port}/"
    try:
        until = time.monotonic() + 120
        while f"The page is at {address}" not in (root / "stderr").read_text():
            assert process.poll() is None, (root / "stderr").read_text()
            assert time.monotonic() < until, "it did not start"
            time.sleep(0.1)
        yield SimpleNamespace(address=address, root=root, process=process, end=end)
    finally:
        end()
