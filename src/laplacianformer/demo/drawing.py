"""What the page draws: the picture as the model sees it, with landmarks, and maps of attention over it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from laplacianformer import plots
from laplacianformer.data import images
from laplacianformer.ops.pooling import Size

SIDE = 448  # pixels of a drawn picture, about
BAR = 56  # pixels of the scale below a map
SAMPLES = {"temple": "china.jpg", "flower": "flower.jpg"}  # inside scikit-learn


def examples() -> dict[str, Path | None]:
    """Pictures to begin with, by name: one drawn here (None), and photographs where scikit-learn is installed."""
    found: dict[str, Path | None] = {"drawn ship": None}
    sklearn = find_spec("sklearn")
    if sklearn is not None and sklearn.origin is not None:
        folder = Path(sklearn.origin).parent / "datasets" / "images"
        found |= {name: folder / file for name, file in SAMPLES.items() if (folder / file).is_file()}
    return found


def ship() -> Image.Image:
    """A red ship at sea, from a few rectangles."""
    down = np.linspace(0, 1, SIDE)[:, None, None]
    sky = np.array([150, 190, 230]) * (1 - down) + np.array([225, 235, 245]) * down
    image = Image.fromarray(np.broadcast_to(sky, (SIDE, SIDE, 3)).astype(np.uint8))
    draw, unit = ImageDraw.Draw(image), SIDE / 16
    draw.rectangle((0, 10 * unit, SIDE, SIDE), fill=(30, 80, 130))
    hull = ((2, 9), (14, 9), (12.5, 11.5), (3.5, 11.5))
    draw.polygon([(unit * x, unit * y) for x, y in hull], fill=(150, 40, 35))
    draw.rectangle((4 * unit, 7 * unit, 11 * unit, 9 * unit), fill=(240, 240, 240))
    draw.rectangle((6 * unit, 4.5 * unit, 8 * unit, 7 * unit), fill=(60, 60, 60))
    return image


def as_seen(picture: Image.Image, taken: dict[str, Any]) -> Image.Image:
    """The part of a picture that the model takes, with more pixels than it takes."""
    channels, height, width = taken["size"]
    times = max(1, round(SIDE / max(height, width)))
    larger = {**taken, "size": (channels, times * height, times * width)}
    pixels = images.to_picture(images.to_input(larger)(picture), larger)
    return Image.fromarray((255 * pixels).round().astype(np.uint8))


def marked(picture: Image.Image, size: Size, query: Size, landmarks: Size | None) -> Image.Image:
    """The picture with a ring round the query token and, if given, the cells of the landmarks."""
    image = picture.copy()
    draw = ImageDraw.Draw(image, "RGBA")
    if landmarks is not None:
        rows, columns = landmarks
        for line in range(1, rows):
            _line(draw, (0, image.height * line / rows), (image.width, image.height * line / rows))
        for line in range(1, columns):
            _line(draw, (image.width * line / columns, 0), (image.width * line / columns, image.height))
    _ring(draw, image.size, size, query)
    return image


def over(picture: Image.Image, weights_hw: Tensor, query: Size) -> Image.Image:
    """A map over the picture in grey, in the colours of `predict --attention`, with their scale below.

    The scale counts in equal shares: 1 where a token counts as much as if all counted the same.
    """
    shares = weights_hw.double().numpy() * weights_hw.numel()
    chosen = plots.colours(shares.ravel())
    coloured = Image.fromarray(chosen.to_rgba(shares, bytes=True)).convert("RGB")
    grey = Image.fromarray((0.3 * 255 + 0.7 * np.asarray(picture.convert("L"))).astype(np.uint8)).convert("RGB")
    image = Image.blend(grey, coloured.resize(picture.size, Image.Resampling.NEAREST), 0.75)
    _ring(ImageDraw.Draw(image, "RGBA"), image.size, shares.shape, query)
    return _with_scale(image, chosen)


def _with_scale(image: Image.Image, chosen: Any) -> Image.Image:
    """The colours from the least to the most, and both as numbers, below the picture."""
    whole = Image.new("RGB", (image.width, image.height + BAR), "white")
    whole.paste(image)
    least, most = chosen.get_clim()
    strip = chosen.to_rgba(np.linspace(least, most, image.width)[None], bytes=True)
    whole.paste(Image.fromarray(strip).convert("RGB").resize((image.width, BAR // 3)), (0, image.height + 4))
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(size=BAR // 2)
    least = 0 if abs(least) < most / 100 else least
    for text, place, anchor in ((f"{least:.2g}", 2, "ld"), (f"{most:.2g} x", image.width - 2, "rd")):
        draw.text((place, whole.height), text, fill="black", font=font, anchor=anchor)
    return whole


def _line(draw: ImageDraw.ImageDraw, start: tuple[float, float], end: tuple[float, float]) -> None:
    """White with dark edges: seen on any picture."""
    draw.line((start, end), fill=(0, 0, 0, 90), width=4)
    draw.line((start, end), fill=(255, 255, 255, 220), width=2)


def _ring(draw: ImageDraw.ImageDraw, image: tuple[int, int], size: Size, query: Size) -> None:
    x, y = (query[1] + 0.5) * image[0] / size[1], (query[0] + 0.5) * image[1] / size[0]
    for radius, width, colour in ((13, 7, (0, 0, 0, 255)), (11, 3, (255, 255, 255, 255))):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=width)
