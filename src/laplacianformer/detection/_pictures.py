"""Boxes, masks, labels and scores drawn on images, in colours that colour-blind readers can tell apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from laplacianformer._util.text import printable
from laplacianformer.plots._pillow import COLOURS, font_of

Rectangle = tuple[float, float, float, float]  # x0, y0, x1, y1
LEAST_SIDE = 480  # pixels of the shorter side; labels on smaller images can't be read
MASK_OPACITY = 0.45


@dataclass(frozen=True)
class Drawn:
    """One object: its box as x0, y0, x1, y1 in pixels of the image, its label, and its mask if it has one."""

    box: Sequence[float]
    label: str
    mask: np.ndarray[Any, np.dtype[np.bool_]] | None = None  # (height, width)


def with_objects(image: Image.Image, objects: Sequence[Drawn], least_side: int = LEAST_SIDE) -> Image.Image:
    """The image, enlarged if it is small, with the objects on it; the first one is drawn last, on top of the others."""
    factor = max(1, math.ceil(least_side / min(image.size)))
    size = (image.width * factor, image.height * factor)
    canvas = image.convert("RGB").resize(size, Image.Resampling.BICUBIC) if factor > 1 else image.convert("RGB")
    line = max(2, round(min(size) / 240))
    coloured = [(drawn, COLOURS[index % len(COLOURS)]) for index, drawn in enumerate(objects)][::-1]
    for drawn, colour in coloured:
        if drawn.mask is not None:
            canvas = _with_mask(canvas, drawn.mask, colour, line)
    for drawn, colour in coloured:
        box = [factor * value for value in drawn.box]
        ImageDraw.Draw(canvas).rectangle(box, outline=colour, width=line)
    occupied: list[Rectangle] = []
    for drawn, colour in coloured[::-1]:
        box = [factor * value for value in drawn.box]
        _draw_label(canvas, box, printable(drawn.label), colour, line, occupied)
    return canvas


def _with_mask(
    canvas: Image.Image, mask: np.ndarray[Any, np.dtype[np.bool_]], colour: tuple[int, int, int], line: int
) -> Image.Image:
    """The colour over the area of the mask, and a line around it."""
    grey = Image.fromarray(mask.astype(np.uint8) * 255).resize(canvas.size, Image.Resampling.BILINEAR)
    area = grey.point(lambda value: 255 if value >= 128 else 0)
    edge = Image.fromarray(np.asarray(area) - np.asarray(area.filter(ImageFilter.MinFilter(2 * (line // 2) + 1))))
    plain = Image.new("RGB", canvas.size, colour)
    canvas = Image.composite(plain, canvas, area.point(lambda value: int(MASK_OPACITY * value)))
    return Image.composite(plain, canvas, edge)


def _draw_label(
    canvas: Image.Image,
    box: Sequence[float],
    label: str,
    colour: tuple[int, int, int],
    line: int,
    occupied: list[Rectangle],
) -> None:
    """The label on a plate above the box; inside or below the box where that would leave the image or cover a plate."""
    font = font_of(max(12, round(min(canvas.size) / 32)))
    draw = ImageDraw.Draw(canvas)
    left, top, right, bottom = draw.textbbox((0, 0), label, font)
    width, height = right - left + 2 * line + 2, bottom - top + 2 * line + 2
    x = min(max(0.0, box[0]), max(0.0, canvas.width - width))
    tops = [y for y in (box[1] - height, box[1], box[3] - height, box[3]) if 0 <= y <= canvas.height - height]
    plates = [(x, y, x + width, y + height) for y in tops] or [(x, 0.0, x + width, float(height))]
    plate = next((plate for plate in plates if not any(_overlap(plate, other) for other in occupied)), plates[0])
    occupied.append(plate)
    draw.rectangle(plate, fill=colour)
    bright = 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] > 120
    draw.text((x + line + 1 - left, plate[1] + line + 1 - top), label, "black" if bright else "white", font)


def _overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
