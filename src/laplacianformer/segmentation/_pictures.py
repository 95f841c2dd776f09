"""Classes of pixels as colours over the image, with a legend, and label maps as files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import replacing
from laplacianformer._util.text import printable
from laplacianformer.plots._pillow import GAP, font_of
from laplacianformer.segmentation._labels import IGNORED, Array, Labels

OPACITY = 0.6
_FONT = 16  # pixels
_LEAST_FRACTION = 5e-4  # of the image; classes that cover less are not in the legend


def overlay(image: Image.Image, indices_hw: Array, labels: Labels, opacity: float = OPACITY) -> Image.Image:
    """The image with the colours of its classes over it; where the class is IGNORED, the image itself."""
    colours = np.zeros((IGNORED + 1, 3), dtype=np.uint8)
    colours[: len(labels.colours)] = labels.colours
    weight = np.where(indices_hw == IGNORED, 0.0, opacity)[..., None]
    pixels = np.asarray(image.convert("RGB"))
    mixed = (1 - weight) * pixels + weight * colours[indices_hw]
    return Image.fromarray(mixed.round().astype(np.uint8))


def fractions(indices_hw: Array, labels: Labels) -> dict[str, float]:
    """The fraction of the image that each class in it covers, the largest first."""
    counts = np.bincount(indices_hw.ravel(), minlength=IGNORED + 1)[: len(labels.names)]
    order = sorted(np.flatnonzero(counts).tolist(), key=lambda index: -counts[index])
    return {labels.names[index]: float(counts[index] / indices_hw.size) for index in order}


def with_legend(image: Image.Image, covered: Mapping[str, float], labels: Labels) -> Image.Image:
    """The image, and below it the colour, name and part of each class in it."""
    shown = {name: part for name, part in covered.items() if part >= _LEAST_FRACTION}
    font = font_of(_FONT)
    texts = [f"{printable(name)} {100 * part:.1f} %" for name, part in shown.items()]
    cells = [_FONT + GAP // 2 + round(font.getlength(text)) + 2 * GAP for text in texts]
    width = max([image.width, *cells])
    corners, x, y = [], GAP, image.height + GAP
    for cell in cells:
        if x + cell > width and x > GAP:
            x, y = GAP, y + _FONT + GAP
        corners.append((x, y))
        x += cell
    canvas = Image.new("RGB", (width, y + _FONT + GAP if cells else image.height), "white")
    canvas.paste(image)
    draw, colours = ImageDraw.Draw(canvas), dict(zip(labels.names, labels.colours, strict=True))
    for (x, y), name, text in zip(corners, shown, texts, strict=True):
        draw.rectangle((x, y, x + _FONT, y + _FONT), fill=colours[name], outline="black")
        draw.text((x + _FONT + GAP // 2, y + _FONT / 2), text, "black", font, anchor="lm")
    return canvas


def save_label_map(indices_hw: Array, labels: Labels, path: Path) -> None:
    """As PNG of one channel, with the values that stand for the classes in files: in the colours of the classes where
    these values have 8 bits. IGNORED is written as the first of the ignored values."""
    if (indices_hw == IGNORED).any() and not labels.ignore:
        raise InputError(f"{path}: some pixels are ignored, and these labels have no value for them: add `ignore`")
    values = np.zeros(IGNORED + 1, dtype=np.uint16)
    values[: len(labels.values)] = labels.values
    values[IGNORED] = labels.ignore[0] if labels.ignore else 0
    stored = values[indices_hw]
    image = Image.fromarray(stored if values.max() > 255 else stored.astype(np.uint8))
    if image.mode == "L":
        palette = np.zeros((256, 3), dtype=np.uint8)
        palette[list(labels.values)] = labels.colours
        image.putpalette(palette.tobytes())
    with replacing(path) as file:
        image.save(file, format="PNG")
