"""Boxes, masks, labels and scores drawn on pictures, in colours that colour-blind readers can tell apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from laplacianformer._util.files import replacing

# Of Okabe and Ito; neighbours in this order differ much.
COLOURS = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167), (0, 114, 178))
LEAST_SIDE = 480  # pixels of the shorter side of what is drawn on: labels on less can't be read
MASK_SHARE = 0.45  # of the colour inside a mask
GAP = 8  # pixels between the pictures of a sheet


@dataclass(frozen=True)
class Drawn:
    """One object: its box as x0, y0, x1, y1 in pixels of the picture, its label, and its mask where there is one."""

    box: Sequence[float]
    label: str
    mask: np.ndarray[Any, np.dtype[np.bool_]] | None = None  # (height, width)


def with_objects(picture: Image.Image, objects: Sequence[Drawn], least_side: int = LEAST_SIDE) -> Image.Image:
    """The picture, enlarged where it is small, with the objects on it; the first is drawn last and so on top."""
    factor = max(1, math.ceil(least_side / min(picture.size)))
    size = (picture.width * factor, picture.height * factor)
    canvas = picture.convert("RGB").resize(size, Image.Resampling.BICUBIC) if factor > 1 else picture.convert("RGB")
    line = max(2, round(min(size) / 240))
    coloured = list(zip(objects, _cycle(len(objects)), strict=True))[::-1]
    for drawn, colour in coloured:
        if drawn.mask is not None:
            canvas = _with_mask(canvas, drawn.mask, colour, line)
    for drawn, colour in coloured:
        box = [factor * value for value in drawn.box]
        ImageDraw.Draw(canvas).rectangle(box, outline=colour, width=line)
    taken: list[tuple[float, float, float, float]] = []
    for drawn, colour in coloured[::-1]:
        _tag(canvas, [factor * value for value in drawn.box], drawn.label, colour, line, taken)
    return canvas


def sheet(rows: Sequence[Sequence[Image.Image]], titles: Sequence[str], path: Path, height: int) -> None:
    """Rows of pictures of one height, with the title of each row at its left; written as PNG."""
    scaled = [
        [picture.resize((round(picture.width * height / picture.height), height)) for picture in row] for row in rows
    ]
    font = _font(18)
    margin = round(max(font.getlength(title) for title in titles)) + 2 * GAP
    widths = [max(pictures[place].width for pictures in scaled) for place in range(len(scaled[0]))]
    canvas = Image.new("RGB", (margin + sum(widths) + GAP * len(widths), len(rows) * (height + GAP) + GAP), "white")
    for number, (title, row) in enumerate(zip(titles, scaled, strict=True)):
        top, left = GAP + number * (height + GAP), margin
        ImageDraw.Draw(canvas).text((GAP, top + height / 2), title, "black", font, anchor="lm")
        for picture, width in zip(row, widths, strict=True):
            canvas.paste(picture, (left, top))
            left += width + GAP
    save(canvas, path)


def save(picture: Image.Image, path: Path) -> None:
    with replacing(path) as file:
        picture.save(file, format="PNG")


def _cycle(count: int) -> list[tuple[int, int, int]]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _with_mask(
    canvas: Image.Image, mask: np.ndarray[Any, np.dtype[np.bool_]], colour: tuple[int, int, int], line: int
) -> Image.Image:
    """The colour over the mask, and a line around it."""
    grey = Image.fromarray(mask.astype(np.uint8) * 255).resize(canvas.size, Image.Resampling.BILINEAR)
    area = grey.point(lambda value: 255 if value >= 128 else 0)
    edge = Image.fromarray(np.asarray(area) - np.asarray(area.filter(ImageFilter.MinFilter(2 * (line // 2) + 1))))
    plain = Image.new("RGB", canvas.size, colour)
    canvas = Image.composite(plain, canvas, area.point(lambda value: int(MASK_SHARE * value)))
    return Image.composite(plain, canvas, edge)


def _tag(
    canvas: Image.Image,
    box: Sequence[float],
    label: str,
    colour: tuple[int, int, int],
    line: int,
    taken: list[tuple[float, float, float, float]],
) -> None:
    """The label on a plate above the box; inside it, or lower, where the plate would leave the picture or cover one."""
    font = _font(max(12, round(min(canvas.size) / 32)))
    draw = ImageDraw.Draw(canvas)
    left, top, right, bottom = draw.textbbox((0, 0), label, font)
    width, height = right - left + 2 * line + 2, bottom - top + 2 * line + 2
    x = min(max(0.0, box[0]), max(0.0, canvas.width - width))
    places = [y for y in (box[1] - height, box[1], box[3] - height, box[3]) if 0 <= y <= canvas.height - height]
    plates = [(x, y, x + width, y + height) for y in places] or [(x, 0.0, x + width, float(height))]
    plate = next((plate for plate in plates if not any(_overlap(plate, other) for other in taken)), plates[0])
    taken.append(plate)
    draw.rectangle(plate, fill=colour)
    bright = 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] > 120
    draw.text((x + line + 1 - left, plate[1] + line + 1 - top), label, "black" if bright else "white", font)


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _font(size: int) -> Any:
    return ImageFont.load_default(size)
