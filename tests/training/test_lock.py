"""One run per folder: a second is refused with the process of the first, and a killed one blocks nobody."""

import errno
import fcntl
import os
import signal
import sys
from pathlib import Path

import pytest

from laplacianformer._util import locks
from laplacianformer._util.errors import InputError
from laplacianformer._util.locks import FolderLock
from laplacianformer.classification import _task as classification

from . import helpers

# Holds the folder, has a child that was forked meanwhile, and waits.
HOLD = """
import os, sys, time
from pathlib import Path
from laplacianformer._util.locks import FolderLock

lock = FolderLock(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    time.sleep(300)
print(os.getpid(), child, flush=True)
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.slow
def test_a_second_run_is_refused_with_the_process_of_the_first_until_that_is_killed(tmp_path: Path) -> None:
    """Then the folder is free, although its children live."""
    recipe = helpers.tiny(tmp_path, optimise={"epochs": 2})
    with helpers.python(["-c", HOLD, str(tmp_path / "run")]) as process:
        assert process.stdout is not None
        pid, child = map(int, process.stdout.readline().split())
        for resume in (False, True):
            with pytest.raises(InputError, match=f"another run writes to .*run: process {pid} on ") as error:
                classification.train(recipe, tmp_path / "run", resume=resume)
            assert "\n" not in str(error.value)
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
        os.kill(pid, signal.SIGKILL)
        process.wait()
        os.kill(child, 0)  # it is there
        FolderLock(tmp_path / "run").release()
        assert not (tmp_path / "run" / ".lock").exists()


def test_the_lock_ends_with_the_run_whatever_ends_it(tmp_path: Path) -> None:
    broken = helpers.tiny(tmp_path, optimise={"batch_size": 5})
    with pytest.raises(InputError, match="mixup needs an even batch size") as error:
        classification.train(broken, tmp_path / "some" / "run")
    assert not (tmp_path / "some").exists(), "nothing was written"
    recipe = helpers.tiny(tmp_path, optimise={"epochs": 2})
    classification.train(recipe, tmp_path / "some" / "run")
    with pytest.raises(InputError, match="already holds a run"):
        classification.train(recipe, tmp_path / "some" / "run")
    classification.train(recipe, tmp_path / "some" / "run", resume=True)
    assert not (tmp_path / "some" / "run" / ".lock").exists()
    assert error.traceback, "which keeps everything alive that the first call had"


def test_the_process_is_on_the_disk_before_the_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network file system another machine would read an empty file."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.pread(descriptor, 100, 0)))
    FolderLock(tmp_path / "run").release()
    (said,) = flushed
    assert said.startswith(f"{os.getpid()} on ".encode())


def test_two_locks_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first = FolderLock(tmp_path)
    with pytest.raises(InputError, match=f"process {os.getpid()} on "):
        FolderLock(tmp_path)
    first.release()
    first.release()
    FolderLock(tmp_path).release()


def test_a_file_system_without_locks_is_named_and_the_run_goes_on(tmp_path: Path, monkeypatch, caplog) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    FolderLock(tmp_path / "run").release()
    (line,) = caplog.messages
    assert line.startswith(f"can't tell whether another run writes to {tmp_path / 'run'}, it has no locks: ")


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".lock").symlink_to("precious")
    with pytest.raises(InputError, match=r"\.lock|symbolic link"):
        FolderLock(tmp_path)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize(
    ("kind", "options", "local"),
    [
        ("nfs4", "rw,vers=4.2", False),
        ("nfs", "rw,nolock", True),
        ("nfs4", "rw,local_lock=none", False),
        ("nfs4", "rw,local_lock=all", True),
        ("cifs", "rw,vers=3.1.1", False),
        ("cifs", "rw,vers=3.1.1,nobrl", True),
        ("lustre", "rw,flock", False),
        ("lustre", "rw,localflock", True),
        ("9p", "rw,trans=virtio", True),
        ("virtiofs", "rw", True),
        ("fuse.sshfs", "rw", True),
        ("fuse.unknown", "rw", True),
        ("fuseblk", "rw", False),
        ("ext4", "rw", False),
    ],
)
def test_locks_that_other_machines_do_not_see_are_named(
    kind: str, options: str, local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    folder = tmp_path / "a folder"
    mounts = tmp_path / "mounts"
    place = str(folder.resolve()).replace(" ", "\\040")
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nserver:/x {place} {kind} {options} 0 0\n")
    monkeypatch.setattr(locks, "_MOUNTS", mounts)
    FolderLock(folder / "run").release()
    assert ("its locks may be seen on this one alone" in caplog.text) == local
