"""Files are written whole or not at all."""

import os
import resource
import select
import socket
import stat
import threading
from pathlib import Path

import pytest

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import UnusedPaths, check_file, replacing, write_json


def test_a_file_appears_when_the_block_ends_and_not_before(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    with replacing(path) as file:
        file.write(b"bytes")
        assert not path.exists()
    assert path.read_bytes() == b"bytes"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail():
        with replacing(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_json(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"can't write .*/file: File too large"):
            write_json(path, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == '"old"\n'
    assert os.listdir(tmp_path) == ["file"]


def test_permissions_are_those_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    write_json(tmp_path / "written", 1)
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_unused_paths_spare_what_is_protected_and_what_was_given_before(tmp_path):
    unused = UnusedPaths(tmp_path, [tmp_path / "b.png", tmp_path / "other" / ".." / "c.png"])
    assert [unused.next(stem, ".png").name for stem in "aabccc"] == [
        "a.png", "a-2.png", "b-2.png", "c-2.png", "c-3.png", "c-4.png",
    ]  # fmt: skip


@pytest.mark.parametrize("hard", [True, False])
def test_a_link_in_the_place_of_the_partial_file_is_not_followed(tmp_path, monkeypatch, hard):
    """Its name can be known before."""
    path, precious = tmp_path / "file", tmp_path / "precious"
    precious.write_text("precious")
    for name in ("file", "kept"):
        (tmp_path / f".{name}.{os.getpid()}.partial").symlink_to(precious)
    path.write_bytes(b"old")
    if not hard:
        monkeypatch.setattr(os, "link", lambda *names: os.open("/dev/full/no links here", os.O_RDONLY))
    with replacing(path, keep=tmp_path / "kept") as file:
        file.write(b"new")
    assert precious.read_text() == "precious"
    assert (path.read_bytes(), (tmp_path / "kept").read_bytes()) == (b"new", b"old")
    assert sorted(os.listdir(tmp_path)) == ["file", "kept", "precious"]


def test_a_partial_file_that_appears_after_it_was_removed_is_not_opened(tmp_path, monkeypatch):
    precious, unlink = tmp_path / "precious", Path.unlink
    precious.write_text("precious")

    def planted(path, missing_ok=False):
        unlink(path, missing_ok)
        path.symlink_to(precious)

    monkeypatch.setattr(Path, "unlink", planted)
    with pytest.raises(InputError, match="File exists"):
        write_json(tmp_path / "file", 1)
    assert precious.read_text() == "precious"


# ---- what is not a regular file ----


@pytest.fixture
def null(tmp_path):
    """A device like /dev/null. Not the one of this machine where the user could replace it."""
    if os.geteuid() != 0:
        return Path("/dev/null")
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.stat("/dev/null").st_rdev)
        path.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"a device can't be made or written to here: {error}")
    return path


def test_a_device_is_written_to_and_stays(null):
    check_file(null)
    write_json(null, "bytes")
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path):
    (tmp_path / "other").mkdir()
    target, link, chain = tmp_path / "other" / "file", tmp_path / "link", tmp_path / "chain"
    link.symlink_to("other/file")
    chain.symlink_to(link)
    for text in ("the file is not there yet", "it is"):
        check_file(chain)
        write_json(chain, text)
        assert target.read_text() == f'"{text}"\n'
        assert link.is_symlink()
        assert chain.is_symlink()
    assert os.listdir(target.parent) == ["file"]


def test_a_link_to_a_device_is_written_to(tmp_path, null):
    (tmp_path / "link").symlink_to(null)
    write_json(tmp_path / "link", "bytes")
    assert (tmp_path / "link").is_symlink()
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_link_to_itself_is_refused_and_stays(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for write in (check_file, lambda path: write_json(path, 1)):
        with pytest.raises(InputError, match=r"can't write .*/a: Too many levels of symbolic links"):
            write(tmp_path / "a")
    assert (tmp_path / "a").is_symlink()
    assert (tmp_path / "b").is_symlink()


def test_a_pipe_gets_the_bytes_when_the_block_ends(tmp_path):
    path, got = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    check_file(path)

    def read():
        select.select([reader], [], [])  # a first writer
        with os.fdopen(reader, "rb") as file:
            got.append(file.read())

    thread = threading.Thread(target=read)
    thread.start()
    with replacing(path) as file:
        file.write(bytes(2**20))
        file.seek(0)
        file.write(b"first")  # as writers of image files do, and a pipe does not allow
    thread.join(60)
    assert got == [b"first" + bytes(2**20 - 5)]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_pipe_that_nobody_reads_is_an_error_and_not_a_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"can't write .*/pipe: no program reads it"):
        write_json(tmp_path / "pipe", "bytes")


def test_an_error_writes_nothing_to_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def fail():
        with replacing(path) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.read(reader, 10) == b""
    os.close(reader)


def test_disks_sockets_and_folders_are_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(InputError, match="it is neither a file nor a pipe"):
            write_json(tmp_path / "socket", 1)
    with pytest.raises(InputError, match="it is a folder"):
        write_json(tmp_path, 1)
    if os.geteuid() == 0:
        try:
            os.mknod(tmp_path / "disk", stat.S_IFBLK | 0o600, os.makedev(0, 0))
        except OSError:
            return
        for write in (check_file, lambda path: write_json(path, 1)):
            with pytest.raises(InputError, match="it is a disk"):
                write(tmp_path / "disk")
