"""Images from files of any kind to the input of a model.

They are rotated as their EXIF data says, transparency is put on white, 16 bits are scaled to 8; of an animation, the
first frame is taken.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError
from timm.data import create_transform
from torch import Tensor
from torchvision.transforms import Compose, Grayscale

from laplacianformer._util.errors import InputError
from laplacianformer._util.limits import MOST_PIXELS
from laplacianformer.data import _walk

SUFFIXES = frozenset({".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_PROGRAMS = frozenset({"EPS", "WMF", "EMF"})  # Pillow would run them, with Ghostscript or Windows
_PHOTOMETRIC, _YCBCR = TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, 6  # a tag of TIFF, and one of its values
_BITS = TiffImagePlugin.BITSPERSAMPLE
_MOST_ELONGATED = 100  # longer side over shorter: the shorter side is resized to that of the model, the longer with it


def find(names: Sequence[str], *, warn: bool = True) -> Iterator[tuple[Path, str]]:
    """The images that names of files, folders and patterns stand for, each with an empty string or the reason why there
    is none; warn: say in the log what was left out."""
    return _walk.find(names, SUFFIXES, "images", warn=warn)


def read(source: Path | IO[bytes] | Image.Image, *, upright: bool = True) -> Image.Image:
    """One image as RGB, rotated as its EXIF data says if `upright`. Raises InputError with the reason if it can't."""
    try:
        with warnings.catch_warnings():
            # Sizes are checked here, and what else Pillow warns of (odd metadata) does not change the image.
            warnings.simplefilter("ignore")
            if isinstance(source, Image.Image):
                return _flat(source, upright=upright)
            with source.open("rb") if isinstance(source, Path) else source as file, _opened(file) as image:
                if image.format in _PROGRAMS:
                    raise InputError(f"{image.format} is a program that draws, not an image: save it as PNG first")
                return _flat(image, upright=upright)
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError("not an image in a format that Pillow reads") from None
    except Image.DecompressionBombError:
        raise InputError(f"more than {MOST_PIXELS / 1e6:.0f} million pixels: make it smaller first") from None
    except MemoryError:
        raise InputError("not enough memory to decode it: make it smaller first") from None
    except Exception as error:  # Pillow's many decoders raise whatever they meet in a broken file
        raise InputError(f"can't be decoded: {error or type(error).__name__}") from None


def read_each(names: Sequence[str]) -> Iterator[tuple[Path, Image.Image | None, str]]:
    """Every file that `find` finds, with its image, or with None and the reason why there is none."""
    for path, failure in find(names):
        image = None
        if not failure:
            try:
                image = read(path)
            except InputError as error:
                failure = str(error)
        yield path, image, failure


def _opened(file: IO[bytes]) -> Image.Image:
    """Image.open, and by libtiff for a kind of TIFF that Pillow's own decoder takes for RGB with four bytes."""
    image = Image.open(file)
    if not isinstance(image, TiffImagePlugin.TiffImageFile) or image.tag_v2.get(_PHOTOMETRIC) != _YCBCR:
        return image
    if any(tile[0] == "raw" for tile in image.tile):
        file.seek(0)
        TiffImagePlugin.READ_LIBTIFF = True  # where another thread opens a TIFF meanwhile, libtiff reads it as well
        try:
            return Image.open(file)
        finally:
            TiffImagePlugin.READ_LIBTIFF = False
    return image


def check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise InputError(f"{width} x {height} pixels, more than {MOST_PIXELS / 1e6:.0f} million: make it smaller first")
    if max(width, height) > _MOST_ELONGATED * min(width, height):
        raise InputError(
            f"{width} x {height} pixels, one side more than {_MOST_ELONGATED} times the other: crop it first"
        )


def _flat(image: Image.Image, *, upright: bool) -> Image.Image:
    """Three channels of 8 bits, no transparency."""
    check_size(*image.size)
    wide = isinstance(image, TiffImagePlugin.TiffImageFile) and max(image.tag_v2.get(_BITS, (1,))) > 16
    if wide and image.mode == "I":
        raise InputError("its pixels are numbers of more than 16 bits, of unknown range: save it with 8 or 16 bits")
    image.load()
    with suppress(Exception):  # EXIF data that can't be read: the image stays as it is stored
        image = ImageOps.exif_transpose(image) if upright else image
    if image.mode == "F":
        raise InputError("its pixels are floating-point numbers of unknown range: save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits; Pillow would clip them at 255
        pixels = np.asarray(image, dtype=np.int64)
        if pixels.min() < 0 or pixels.max() > 65535:
            raise InputError("its pixels are not numbers from 0 to 65535: save it with 8 or 16 bits")
        image = Image.fromarray(((pixels + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image)
        image = white
    return image.convert("RGB")


def to_input(model_input: dict[str, Any], *, normalize: bool = True) -> Callable[[Image.Image], Tensor]:
    """The transform from an image that was read to the input of a model; without `normalize`, to its bytes.

    It is the only one: evaluation in training, `eval` and `predict` see the same.

    model_input: what the model expects, as in a weights file: size, mean, std, interpolation, crop_pct.
    """
    channels = model_input["size"][0]
    if channels not in (1, 3):
        raise InputError(f"the model takes {channels} channels: expected 1 or 3, grey or colour")
    transform = create_transform(
        input_size=tuple(model_input["size"]),
        mean=model_input["mean"],
        std=model_input["std"],
        interpolation=model_input["interpolation"],
        crop_pct=model_input["crop_pct"],
        is_training=False,
        normalize=normalize,
    )
    return Compose([Grayscale(), transform]) if channels == 1 else transform


def to_picture(tensor: Tensor, model_input: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What the model saw, (height, width, 3) from 0 to 1: the normalisation of `to_input` undone."""
    mean, std = (np.array(model_input[key])[:, None, None] for key in ("mean", "std"))
    pixels = (tensor.double().numpy() * std + mean).clip(0, 1)
    return np.broadcast_to(pixels, (3, *pixels.shape[1:])).transpose(1, 2, 0)
