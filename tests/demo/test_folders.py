"""The folder of the page is gone when its process is: after any signal, or when the next one starts."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from laplacianformer.demo.folders import PREFIX, own_folder, remove_abandoned
from tests.demo.conftest import start

HOLD = """
import sys
from laplacianformer.demo.folders import own_folder
with own_folder() as folder:
    open(f"{folder}/file", "w").close()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(temporary):
    """A process that has a folder, and the folder."""
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": source}
    command = [sys.executable, "-c", HOLD]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


@pytest.mark.slow
def test_the_folder_of_a_killed_process_is_removed_by_the_next(holder, temporary):
    process, folder = holder
    remove_abandoned()
    assert (folder / "file").exists(), "its process is alive"
    process.kill()
    process.wait()
    assert (folder / "file").exists()
    with own_folder() as other:
        assert [path.name for path in temporary.iterdir()] == [Path(other).name]
    assert not list(temporary.iterdir())


def test_what_is_no_abandoned_folder_stays(temporary):
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / "file").touch()
    (temporary / f"{PREFIX}link").symlink_to("elsewhere")
    (temporary / f"{PREFIX}file").touch()
    remove_abandoned()
    assert {path.name for path in temporary.iterdir()} == {"elsewhere", f"{PREFIX}link", f"{PREFIX}file"}
    assert (temporary / "elsewhere" / "file").exists()


TWICE = """
import os, shutil, signal, sys, threading
from laplacianformer.commands import demo
from laplacianformer.demo.folders import own_folder

def removing(*arguments, remove=shutil.rmtree, **options):
    os.kill(os.getpid(), second)
    threading.Event().wait(0.1)
    remove(*arguments, **options)

shutil.rmtree = removing
for names in sys.argv[1:]:
    first, second = (signal.Signals[f"SIG{name}"] for name in names.split())
    for number in demo._signals():
        signal.signal(number, signal.SIG_DFL)
    demo._end_as_by_interrupt()
    try:
        with own_folder():
            os.kill(os.getpid(), first)
            threading.Event().wait()
    except KeyboardInterrupt:
        print(names, flush=True)
"""


@pytest.mark.slow
def test_a_second_signal_leaves_no_folder(temporary):
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": source}
    pairs = ["HUP HUP", "TERM INT", "INT TERM", "HUP INT"]
    command = [sys.executable, "-c", TWICE, *pairs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == pairs, done.stderr
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_nothing_is_left_when_the_terminal_is_closed(tmp_path):
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'laplacianformer[page]'")
    page = start(tmp_path)
    try:
        page.wait()
        assert list((tmp_path / "temporary").iterdir())
        page.end(signal.SIGHUP)
        assert not list((tmp_path / "temporary").iterdir())
    finally:
        page.process.kill()
        page.process.wait()
