"""Subfolders, symbolic links and special files: the class is the first level, each real file counts once."""

import logging
import os
import socket
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.data import _images as images
from laplacianformer.data._sources import Source, open_images

from ..training.helpers import image_folder


def nested(root: Path) -> Path:
    """root/{train,val}/{cat,dog}/{2023,2024}/N.png, and one image directly in train/cat."""
    for split in ("train", "val"):
        for number, name in enumerate(("cat/2023", "cat/2024", "dog/2023", "dog/2024")):
            (root / split / name).mkdir(parents=True)
            for image in range(number + 1):
                Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(root / split / name / f"{image}.png")
    Image.new("RGB", (8, 8)).save(root / "train" / "cat" / "9.png")
    return root


def labels(opened) -> dict[str, int]:
    found = [opened.classes[opened.read(index)[1]] for index in range(len(opened))]
    return {name: found.count(name) for name in opened.classes}


def test_the_class_is_the_first_level_and_the_log_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = str(nested(tmp_path))
    assert labels(open_images(Source("folder", root, "train"))) == {"cat": 4, "dog": 7}
    assert caplog.messages == [
        f"{tmp_path / 'train'}: 10 images are in subfolders of the class folders and count for the class: cat 4, dog 7"
    ]
    assert labels(open_images(Source("folder", root, "validation"))) == {"cat": 3, "dog": 7}
    assert labels(open_images(Source("folder", f"{root}/val", "validation", inside=("cat", "dog")))) == {
        "cat": 3,
        "dog": 7,
    }


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves the tar open
@pytest.mark.parametrize("outer", ["train", ".", "some/train"])
def test_the_class_is_the_first_level_in_a_tar_below_folders_that_all_share(tmp_path: Path, outer: str) -> None:
    nested(tmp_path / "data")
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        tar.add(tmp_path / "data" / "train", outer)
    assert labels(open_images(Source("folder", str(tmp_path), "train"))) == {"cat": 4, "dog": 7}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["cat", "cat/2023"], {"cat": 2}),
        (["train/cat"], {"cat": 1}),
        (["train/cat/2023", "train/cat/2024"], {"cat": 2}),
        (["some/train/cat/2023"], {"cat": 1}),
        (["cat/2023", "cat/2024"], None),
        (["cat/2023"], None),
    ],
)
def test_a_tar_with_one_class(tmp_path: Path, folders: list[str], expected: dict[str, int] | None) -> None:
    for number, name in enumerate(folders):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "data" / name / f"{number}.png")
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        tar.add(tmp_path / "data", ".")
    if expected is None:
        with pytest.raises(InputError, match=r"subfolders of cat, .* the only one: expected CLASS/image .*train/CLASS"):
            open_images(Source("folder", str(tmp_path), "train"))
    else:
        assert labels(open_images(Source("folder", str(tmp_path), "train"))) == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_tar_inside_a_tar_is_a_class(tmp_path: Path) -> None:
    image_folder(tmp_path / "data")
    with tarfile.open(tmp_path / "train.tar", "w") as outer:
        for number in range(3):
            with tarfile.open(tmp_path / f"c{number}.tar", "w") as inner:
                inner.add(tmp_path / "data" / "train" / f"class{number}", ".")
            outer.add(tmp_path / f"c{number}.tar", f"c{number}.tar")
    assert labels(open_images(Source("folder", str(tmp_path), "train"))) == {"c0": 8, "c1": 8, "c2": 8}


def test_without_subfolders_and_links_the_log_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_images(Source("folder", str(image_folder(tmp_path)), "train"))
    assert caplog.messages == []


# ---- links ----


def linked(root: Path) -> Path:
    """30 images, and links to folders around them, to a sibling, to a file, in a circle, and to nothing."""
    image_folder(root, train=10, val=1)
    train = root / "train"
    (train / "class0" / "up").symlink_to(train)
    (train / "class0" / "around").symlink_to(root)
    (train / "class0" / "a_sibling").symlink_to(train / "class1", target_is_directory=True)
    (train / "class1" / "a_copy.png").symlink_to(train / "class2" / "0.png")
    (train / "class1" / "circle.png").symlink_to(train / "class1" / "circle.png")
    return root


@pytest.mark.parametrize("reader", ["folder", "torch/image_folder"])
def test_each_real_file_counts_once(tmp_path: Path, reader: str, caplog: pytest.LogCaptureFixture) -> None:
    opened = open_images(Source(reader, str(linked(tmp_path)), "train"))
    names = [Path(opened.name(index)) for index in range(len(opened))]
    assert len([name for name in names if name.name != "circle.png"]) == 30
    assert not any(name.is_symlink() or name.parent.is_symlink() for name in names if name.name != "circle.png")
    assert [line for line in caplog.messages if "left out 4 symbolic links" in line]


def test_a_folder_of_links_to_images_elsewhere_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image_folder(tmp_path / "pool")
    for path in sorted((tmp_path / "pool" / "train").glob("*/*.png")):
        link = tmp_path / "data" / "train" / path.parent.name / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    (tmp_path / "data" / "val").symlink_to(tmp_path / "pool" / "val")
    assert len(open_images(Source("folder", str(tmp_path / "data"), "train"))) == 24
    assert len(open_images(Source("folder", str(tmp_path / "data"), "validation"))) == 12
    assert caplog.messages == []


def test_a_class_that_is_only_a_link_to_another_is_refused(tmp_path: Path) -> None:
    train = image_folder(tmp_path) / "train"
    (train / "again").symlink_to(train / "class1")
    with pytest.raises(InputError, match="again has no images of its own"):
        open_images(Source("folder", str(tmp_path), "train"))


def test_predict_finds_each_real_file_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = linked(tmp_path) / "train"
    (train / "class1" / "circle.png").unlink()
    for name in (train, train / "**" / "*.png", train / "**", train / "*" / "*.png"):
        caplog.clear()
        found = [path for path, failure in images.find([str(name)]) if not failure]
        assert len(found) == 30, name
        assert caplog.messages
        assert all("left out" in line for line in caplog.messages)
    assert len(list(images.find([str(train / "class0" / "0.png")] * 2))) == 2, "what is named twice is read twice"


@pytest.mark.parametrize("reader", ["folder", "torch/image_folder"])
def test_a_link_to_itself_is_named(tmp_path: Path, reader: str, caplog: pytest.LogCaptureFixture) -> None:
    train = image_folder(tmp_path) / "train"
    for name in ("loop", "class1/loop"):
        (train / name).symlink_to(train / name)
    assert labels(open_images(Source(reader, str(tmp_path), "train"))) == {"class0": 8, "class1": 8, "class2": 8}
    named = f"{train / 'class1' / 'loop'}, {train / 'loop'}"
    assert caplog.messages == [f"{train}: left out 2 symbolic links that lead to themselves: {named}"]


def test_up_to_five_paths_that_were_left_out_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = image_folder(tmp_path) / "train"
    for number in range(7):
        (train / "class0" / f"{number}-again").symlink_to(train)
    open_images(Source("folder", str(tmp_path), "train"))
    named = ", ".join(str(train / "class0" / f"{number}-again") for number in range(5))
    assert caplog.messages[0].endswith(f"listed anyway: {named} and 2 more")


# ---- what is no file ----


def with_special_files(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.png")
    (folder / "null.png").symlink_to("/dev/null")
    (folder / "plain-pipe").symlink_to(folder / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(folder)  # the path of a socket may have 107 bytes
        try:
            server.bind("socket.png")
        finally:
            os.chdir(here)
    return folder


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reader", ["folder", "torch/image_folder"])
def test_pipes_devices_and_sockets_are_left_out_and_counted(tmp_path: Path, reader: str, caplog) -> None:
    with_special_files(image_folder(tmp_path) / "train" / "class1")
    opened = open_images(Source(reader, str(tmp_path), "train"))
    assert labels(opened) == {"class0": 8, "class1": 8, "class2": 8}
    assert [line for line in caplog.messages if "left out 3 named pipes, devices or sockets: " in line]
    with caplog.at_level(logging.WARNING):
        assert len(list(images.find([str(tmp_path / "train")]))) == 24


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_an_idx_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train-images-idx3-ubyte")
    with pytest.raises(InputError, match="has no train-images-idx3-ubyte"):
        open_images(Source("idx", str(tmp_path), "train"))


def deep_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that can't be listed by its path, not even by root: the path is too long for the system."""
    for _ in range(17):
        monkeypatch.chdir(root)
        Path("x" * 250).mkdir()
        root = Path("x" * 250)
    monkeypatch.undo()


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image_folder(tmp_path)
    deep_folder(tmp_path / "train" / "class1", monkeypatch)
    with pytest.raises(InputError, match=r"can't list the folder .*xxx: File name too long"):
        open_images(Source("folder", str(tmp_path), "train"))
    *readable, (path, reason) = images.find([str(tmp_path / "train")])
    assert len(readable) == 24
    assert reason == "can't be listed: File name too long"
    assert path.name == "x" * 250


def test_a_name_that_is_too_long_does_not_stop_the_others(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    long = str(tmp_path / ("y" * 300))
    found = list(images.find([long, f"{long}*", str(tmp_path / "a.png")]))
    assert [(path.name[0], reason) for path, reason in found] == [
        ("y", "File name too long"),
        ("y", "File name too long"),
        ("a", ""),
    ]
