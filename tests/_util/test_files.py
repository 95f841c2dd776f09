"""Files are written whole or not at all."""

import os
import resource

import pytest

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import UnusedPaths, replacing, write_json


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
