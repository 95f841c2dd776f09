"""Images with label maps from files: layouts, and what is wrong with them."""

import logging
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.segmentation._images import open_images
from laplacianformer.segmentation._labels import IGNORED
from laplacianformer.segmentation._recipe import SegmentationData, load_recipe
from tests.segmentation import helpers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return helpers.labelled_folder(tmp_path / "data")


def opened(folder: Path, **keys: Any) -> Any:
    return open_images(SegmentationData(root=str(folder), **keys), "train")


def relabel(folder: Path, image: Image.Image) -> None:
    image.save(folder / "train_labels" / "0.png")


def test_a_folder_of_images_and_one_of_label_maps(folder: Path) -> None:
    found = opened(folder)
    image, indices = found.read(0)
    assert (len(found), image.size, indices.shape) == (4, (48, 40), (40, 48))
    assert found.labels.names == tuple(helpers.CLASSES)
    assert (indices[:2] == IGNORED).all(), "the value 9"
    assert np.unique(indices[2:]).tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", ["palette", "16 bits"])
def test_palettes_give_their_indices_and_16_bits_their_numbers(folder: Path, mode: str) -> None:
    expected = opened(folder).read(0)[1]
    with Image.open(folder / "train_labels" / "0.png") as stored:
        values = np.asarray(stored)
    if mode == "palette":
        image = Image.fromarray(values)
        image.putpalette([200, 100, 50] * 256)
    else:
        image = Image.fromarray(values.astype(np.uint16))
    relabel(folder, image)
    with Image.open(folder / "train_labels" / "0.png") as stored:
        assert stored.mode == {"palette": "P", "16 bits": "I;16"}[mode]
    assert np.array_equal(opened(folder).read(0)[1], expected)


def png(values: np.ndarray, depth: int) -> bytes:
    """A grey PNG of so many bits per pixel, written by hand: Pillow writes 1, 8 and 16 only."""
    height, width = values.shape
    bits = (values[..., None].astype(np.int64) >> np.arange(depth)[::-1]) & 1
    rows = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_grey_label_maps_of_every_depth_give_their_numbers(folder: Path, depth: int) -> None:
    most = min(2**depth, 255)
    values = np.arange(48 * 40).reshape(40, 48) % most
    (folder / "train_labels" / "0.png").write_bytes(png(values, depth))
    labels = {"classes": [{"name": str(value), "value": value} for value in range(most)]}
    assert np.array_equal(opened(folder, labels=labels).read(0)[1], values)


def test_16_bits_are_read_as_one_number(folder: Path) -> None:
    values = np.full((40, 48), 1000)
    values[:20] = 33_000
    (folder / "train_labels" / "0.png").write_bytes(png(values, 16))
    labels = {"classes": [{"name": "a", "value": 1000}, {"name": "b", "value": 33_000}]}
    assert np.array_equal(opened(folder, labels=labels).read(0)[1], (values == 33_000).astype(np.uint8))


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (Image.new("L", (48, 40), 7), r"has the values 7 in its label map, which are neither classes \(0 to 2\)"),
        (Image.new("L", (40, 40)), r"is 48 x 40 pixels, and its label map .*0\.png 40 x 40"),
        (Image.new("RGB", (48, 40)), r"a label map .*0\.png of colours \(RGB\): expected one channel"),
    ],
)
def test_a_label_map_that_does_not_fit_is_refused_when_it_is_read(folder: Path, image: Image.Image, said: str) -> None:
    relabel(folder, image)
    with pytest.raises(InputError, match=said):
        opened(folder).read(0)
    opened(folder).read(1)


def test_a_broken_label_map_is_refused_when_it_is_read(folder: Path) -> None:
    (folder / "train_labels" / "0.png").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"a label map .*0\.png that can't be decoded"):
        opened(folder).read(0)


def test_files_without_their_partner_are_left_out_and_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "train_labels" / "0.png").unlink()
    (folder / "train" / "1.png").unlink()
    with caplog.at_level(logging.WARNING):
        assert len(opened(folder)) == 2
    assert "image without a label map" in caplog.text
    assert str(folder / "train" / "0.png") in caplog.text
    assert "label map without an image" in caplog.text
    assert str(folder / "train_labels" / "1.png") in caplog.text
    for path in (folder / "train_labels").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"no image in .*train has a label map \(\.png\) in .*train_labels; 0\.png"):
        opened(folder)


def test_an_image_is_read_as_its_label_map_has_it(folder: Path) -> None:
    """Photographs are labelled upright by some tools, and as they are stored by others."""
    rotated = Image.Exif()
    rotated[0x0112] = 6
    Image.new("RGB", (48, 40)).save(folder / "train" / "0.png", exif=rotated)
    assert opened(folder).read(0)[0].size == (48, 40)
    relabel(folder, Image.new("L", (40, 48)))
    assert opened(folder).read(0)[0].size == (40, 48)


def test_what_is_missing_is_said(folder: Path, tmp_path: Path) -> None:
    (folder / "labels.yaml").unlink()
    with pytest.raises(InputError, match=r"nothing says what the values .* mean: write .*labels\.yaml"):
        opened(folder)
    with pytest.raises(InputError, match="no folders train and train_labels"):
        opened(tmp_path / "data" / "train", labels={"classes": ["a"]})
    with pytest.raises(InputError, match=r"data\.train_images and data\.train_labels belong together"):
        opened(folder, labels={"classes": ["a"]}, train_images="train")
    labels = {"ignore": 9, "classes": ["a", "b", "c"]}
    found = opened(folder, labels=labels, train_images="val", train_labels="val_labels")
    assert (len(found), found.labels.names) == (2, ("a", "b", "c"))


def test_ade20k_as_it_is_distributed(tmp_path: Path) -> None:
    root = tmp_path / "ade"
    for name in ("images/training", "annotations/training"):
        (root / name).mkdir(parents=True)
    Image.new("RGB", (5, 4)).save(root / "images" / "training" / "ADE_train_1.jpg")
    Image.fromarray(np.array([[0, 1, 2, 1, 0]] * 4, dtype=np.uint8)).save(
        root / "annotations" / "training" / "ADE_train_1.png"
    )
    rows = ("Idx\tRatio\tTrain\tVal\tName", "1\t0.2\t9\t9\twall", "2\t0.1\t9\t9\tbuilding, edifice", "")
    (root / "objectInfo150.txt").write_text("\n".join(rows))
    found = opened(root, reader="ade20k")
    assert found.labels.names == ("wall", "building, edifice")
    assert found.read(0)[1][0].tolist() == [IGNORED, 0, 1, 0, IGNORED]


def test_cityscapes_as_it_is_distributed(tmp_path: Path) -> None:
    images, maps = tmp_path / "leftImg8bit" / "train" / "ulm", tmp_path / "gtFine" / "train" / "ulm"
    for folder in (images, maps):
        folder.mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(images / "ulm_000000_000019_leftImg8bit.png")
    values = Image.fromarray(np.array([[7, 8, 33, 0]] * 4, dtype=np.uint8))
    values.save(maps / "ulm_000000_000019_gtFine_labelIds.png")
    values.save(maps / "ulm_000000_000019_gtFine_instanceIds.png")
    data = load_recipe("cityscapes-upernet", [f"data.root={tmp_path}"]).data
    found = open_images(data, "train")
    assert (len(found), len(found.labels.names)) == (1, 19)
    assert found.read(0)[1][0].tolist() == [0, 1, 18, IGNORED]


def test_generated_shapes_are_the_same_from_the_same_seed() -> None:
    data = SegmentationData(reader="shapes", shapes_train=3, shapes_val=3, shapes_size=48)
    first, again, other = (open_images(data, "train", seed).read(0) for seed in (0, 0, 1))
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(np.asarray(first[0]), np.asarray(other[0]))
    assert first[1].max() <= 5
