"""Images of every kind become the pixels that a viewer would show; for others there is a reason."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.data import _images as images
from tests.helpers import INPUT, picture


def pixels(image):
    return np.asarray(image).astype(int)


def stored(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    buffer.seek(0)
    return buffer


# ---- kinds of images ----


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_formats_give_the_pixels_that_were_stored(form):
    image = picture(0, (20, 10))
    options = {"lossless": True} if form == "WEBP" else {}
    assert np.array_equal(pixels(images.read(stored(image, form, **options))), pixels(image))


@pytest.mark.parametrize("mode", ["1", "L", "P", "YCbCr", "CMYK", "HSV"])
def test_modes_become_colour(mode):
    image = picture(1).convert(mode)
    read = images.read(image if mode in ("YCbCr", "HSV") else stored(image, "TIFF" if mode == "CMYK" else "PNG"))
    assert read.mode == "RGB"
    assert np.array_equal(pixels(read), pixels(image.convert("RGB")))


def test_one_channel_gives_greyscale():
    taken = {"size": (1, 32, 32), "mean": [0.0], "std": [1.0], "interpolation": "bicubic", "crop_pct": 1.0}
    grey = images.to_input(taken)(images.read(stored(picture(0))))
    assert grey.shape == (1, 32, 32)
    assert np.array_equal((255 * grey[0]).round(), pixels(picture(0).convert("L")))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_put_on_white(mode):
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    read = images.read(stored(image.convert(mode) if mode != "P" else image.quantize(2)))
    assert [read.getpixel((x, 0)) for x in (0, 1)] == [(0, 0, 0), (255, 255, 255)]


def test_half_transparency_is_half_white():
    red, green, blue = images.read(stored(Image.new("RGBA", (1, 1), (100, 0, 255, 128)))).getpixel((0, 0))
    assert (red, green, blue) == pytest.approx((177, 127, 255), abs=1)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_to_eight(form):
    small = np.arange(256, dtype=np.uint16).reshape(16, 16)
    read = images.read(stored(Image.fromarray(small * 257), form))
    assert np.array_equal(pixels(read), np.repeat(small[..., None], 3, 2))


@pytest.mark.parametrize("values", [[0, 2**31 - 1], [0, 70000], [0, 4095], [-5, 0]])
def test_tiffs_of_more_than_sixteen_bits_are_refused(values):
    """Their range is unknown: they were cut at 65535."""
    wide = Image.fromarray(np.array([values], np.int32))
    with pytest.raises(InputError, match="more than 16 bits, of unknown range: save it with 8 or 16 bits"):
        images.read(stored(wide, "TIFF"))
    if min(values) < 0 or max(values) > 65535:
        with pytest.raises(InputError, match="not numbers from 0 to 65535"):
            images.read(wide)


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_deflate", "packbits"])
def test_tiffs_of_luma_and_chroma_are_read(compression):
    image = picture(1, (24, 16)).convert("YCbCr")
    read = images.read(stored(image, "TIFF", compression=compression))
    assert np.abs(pixels(read) - pixels(image.convert("RGB"))).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_as_their_exif_data_says(orientation):
    upright, turns = picture(2, (12, 8)), Image.Transpose
    undo = {2: turns.FLIP_LEFT_RIGHT, 3: turns.ROTATE_180, 4: turns.FLIP_TOP_BOTTOM, 5: turns.TRANSPOSE,
            6: turns.ROTATE_90, 7: turns.TRANSVERSE, 8: turns.ROTATE_270}  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    as_stored = upright.transpose(undo[orientation]) if orientation > 1 else upright
    assert np.array_equal(pixels(images.read(stored(as_stored, exif=exif))), pixels(upright))


def test_broken_exif_data_leaves_the_image_as_it_is():
    image = picture(2, (12, 8))
    exif = b"Exif\x00\x00ZM\x00*\x00\x00\x00\x08\xff\xff\xff"
    assert np.array_equal(pixels(images.read(stored(image, "WEBP", lossless=True, exif=exif))), pixels(image))


def test_an_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    read = images.read(stored(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert read.getpixel((4, 4)) == (254, 0, 0) or read.getpixel((4, 4)) == (255, 0, 0)


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (3000, 40)])
def test_small_and_elongated_images_become_inputs(size):
    tensor = images.to_input(INPUT)(images.read(stored(picture(0, size))))
    assert tensor.shape == (3, 32, 32)
    assert tensor.isfinite().all()


def test_the_picture_of_an_input_is_the_original_image():
    image = picture(3)
    seen = images.to_picture(images.to_input(INPUT)(image), INPUT)
    np.testing.assert_allclose(seen * 255, pixels(image), atol=1e-3)
    grey = {**INPUT, "size": [1, 32, 32], "mean": [0.3], "std": [0.2]}
    assert images.to_picture(torch.zeros(1, 32, 32), grey).shape == (32, 32, 3)


# ---- what can't be read ----


def png_of_size(width, height):
    """A PNG whose header announces a size, with no pixels behind it."""
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    )
    packed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an image"),
        (b"just text", "not an image"),
        (stored(picture(0, (200, 200)), "JPEG").getvalue()[:1500], "can't be decoded: .*truncated"),
        (stored(picture(0, (200, 200)), "PNG").getvalue()[:300], "can't be decoded: .*truncated"),
        (png_of_size(15000, 15000), "15000 x 15000 pixels, more than 179 million|more than 179 million pixels"),
        (png_of_size(90000, 90000), "more than 179 million pixels: make it smaller"),
        (stored(picture(0, (300, 2))).getvalue(), "300 x 2 pixels, one side more than 100 times"),
        (stored(Image.new("F", (4, 4)), "TIFF").getvalue(), "floating-point"),
    ],
    ids=["empty", "text", "cut jpeg", "cut png", "large", "huge", "thin", "float"],
)
def test_an_unreadable_image_has_a_reason(content, message, tmp_path):
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    for source in (path, io.BytesIO(content)):
        with pytest.raises(InputError, match=message):
            images.read(source)


def test_a_file_without_permission_has_a_reason(tmp_path):
    with pytest.raises(InputError, match=r"can't be decoded: .*No such file"):
        images.read(tmp_path / "gone.png")


# ---- names ----


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in ("b.png", "a.JPG", "sub/c.webp", "sub/deep/d.gif", ".hidden.png", ".cache/e.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd[1].png").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["b.png", "a.JPG"], ["b.png", "a.JPG"]),
        (["notes.txt"], ["notes.txt"]),
        (["sub"], ["sub/c.webp", "sub/deep/d.gif"]),
        (["."], ["a.JPG", "b.png", "odd[1].png", "sub/c.webp", "sub/deep/d.gif"]),
        (["*.png"], ["b.png", "odd[1].png"]),
        (["**/*.gif", "?.png"], ["sub/deep/d.gif", "b.png"]),
        (["odd[1].png"], ["odd[1].png"]),
        (["s*"], ["sub/c.webp", "sub/deep/d.gif"]),
    ],
)
def test_files_folders_and_patterns_are_found(tree, names, found):
    assert [(str(path), problem) for path, problem in images.find(names)] == [(name, "") for name in found]


def test_names_without_a_file_are_reported_among_the_others(tree):
    os.mkfifo("pipe")
    found = dict(images.find(["none.png", "b.png", "*.bmp", "empty", "pipe"]))
    assert found[Path("b.png")] == ""
    assert found[Path("none.png")] == "no such file or folder"
    assert found[Path("*.bmp")] == "no file matches this pattern"
    assert found[Path("empty")].startswith("no images in this folder")
    assert found[Path("pipe")] == "not a regular file"


@pytest.mark.filterwarnings("error")
def test_a_picture_that_is_a_program_is_refused_and_not_run(tmp_path, monkeypatch):
    """Pillow would start Ghostscript for it, where that is installed: here, anything that is called so."""
    Image.new("RGB", (8, 8)).save(tmp_path / "drawn.png", "EPS")
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # found once, and kept
    with pytest.raises(InputError, match="EPS is a program that draws"):
        images.read(tmp_path / "drawn.png")
    assert not (tmp_path / "ran").exists()
