"""What is drawn with Pillow alone: colours, text, sheets of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from laplacianformer._util.files import replacing

# From Okabe and Ito's palette, in an order in which neighbours differ clearly.
COLOURS = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167), (0, 114, 178))
GAP = 8  # pixels between the images of a sheet


def draw_sheet(rows: Sequence[Sequence[Image.Image]], titles: Sequence[str], path: Path, height: int) -> None:
    """Rows of images of one height, with the title of each row to its left; written as PNG."""
    scaled = [[image.resize((round(image.width * height / image.height), height)) for image in row] for row in rows]
    font = font_of(18)
    margin = round(max(font.getlength(title) for title in titles)) + 2 * GAP
    widths = [max(row[column].width for row in scaled) for column in range(len(scaled[0]))]
    canvas = Image.new("RGB", (margin + sum(widths) + GAP * len(widths), len(rows) * (height + GAP) + GAP), "white")
    for index, (title, row) in enumerate(zip(titles, scaled, strict=True)):
        top, left = GAP + index * (height + GAP), margin
        ImageDraw.Draw(canvas).text((GAP, top + height / 2), title, "black", font, anchor="lm")
        for image, width in zip(row, widths, strict=True):
            canvas.paste(image, (left, top))
            left += width + GAP
    save(canvas, path)


def save(image: Image.Image, path: Path) -> None:
    """As PNG, whole or not at all."""
    with replacing(path) as file:
        image.save(file, format="PNG")


def font_of(size: int) -> Any:
    """Pillow's own font."""
    return ImageFont.load_default(size)
