"""A lock on a folder: for one process at a time. The system releases it when the process ends, however it ends."""

import logging
import os
import re
import socket
import weakref
from contextlib import suppress
from pathlib import Path

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import writing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_NAME = ".lock"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # its target would be overwritten
_MOUNTS = Path("/proc/self/mounts")
# Options of file systems on other machines with which those don't see the locks of this one.
_LOCAL = {"nolock", "local_lock=flock", "local_lock=all", "nobrl", "localflock"}
_NETWORK = ("nfs", "cifs", "smb", "lustre")
_UNKNOWN = ("9p", "virtiofs", "fuse")  # it depends on what is behind them
_ON_THIS_MACHINE = ("fuseblk", "fuse.ntfs", "fuse.ntfs-3g", "fuse.exfat", "fuse.fuse-overlayfs", "fuse.mergerfs")
_held = set[int]()  # file descriptors


class FolderLock:
    """Holds a folder, which is made where it is missing, until `release`, or until the process ends.

    Where another process holds it, an InputError says which. Where the file system has no locks, the log says so.
    """

    def __init__(self, folder: Path) -> None:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = _locked(folder)
        _held.add(descriptor)
        self._release = weakref.finalize(self, _release, descriptor, folder, made, os.getpid())

    def release(self) -> None:
        """Let others have the folder. Folders that were made and are still empty are removed."""
        self._release()


def _locked(folder: Path) -> int:
    """The file descriptor of the lock."""
    path = folder / _NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NO_LINK, 0o666)
        try:
            _lock(descriptor, folder)
            if _is_at(path, descriptor):  # the process before may have removed it after it was opened here
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode())
                _flush(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    """Let other machines read what was written; some file systems can't, and their locks are as good as before."""
    with suppress(OSError):
        os.fsync(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        if fcntl is None:
            raise OSError("this system has no flock")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 1000).decode(errors="replace") or "unknown"
        raise InputError(
            f"another run writes to {folder}: process {owner}; wait for its end, or give another --output"
        ) from None
    except OSError as error:
        logger.warning("can't tell whether another run writes to %s, it has no locks: %s", folder, error)
    else:
        if _locks_are_local(folder):
            logger.warning(
                "can't tell whether a run on another machine writes to %s: its locks may be seen on this one alone",
                folder,
            )


def _locks_are_local(folder: Path) -> bool:
    """Whether the folder may be on other machines, too, which don't see its locks; as far as the system says so."""
    try:
        mounts = [line.split(" ") for line in _MOUNTS.read_text(errors="surrogateescape").splitlines()]
    except OSError:
        return False
    path = os.path.realpath(folder)
    above = [mount for mount in mounts if len(mount) > 3 and Path(path).is_relative_to(_unescaped(mount[1]))]
    if not above:
        return False
    _, _, kind, options, *_ = max(above, key=lambda mount: len(mount[1]))
    if kind.startswith(_NETWORK):
        return not _LOCAL.isdisjoint(options.split(","))
    return kind.startswith(_UNKNOWN) and kind not in _ON_THIS_MACHINE


def _unescaped(mount_point: str) -> str:
    """Spaces and such are octal numbers there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), mount_point)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _release(descriptor: int, folder: Path, made: list[Path], owner: int) -> None:
    if os.getpid() != owner:  # a copy in a child process
        return
    _held.discard(descriptor)
    try:
        (folder / _NAME).unlink(missing_ok=True)
        for path in made:
            path.rmdir()
    except OSError:  # it is not empty, as after every run that began; or it is gone
        pass
    os.close(descriptor)


def _close_copies() -> None:
    """In a child process: its copy of the descriptor would keep the lock when the parent is killed."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)
