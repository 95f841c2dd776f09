"""Images to begin with: one that is drawn here, and photographs where scikit-learn is installed."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SHIP = "drawn ship"
PHOTOGRAPHS = {"temple": "china.jpg", "flower": "flower.jpg"}  # inside scikit-learn
SIDE = 448  # pixels of the drawn image


def names() -> list[str]:
    return [SHIP, *_photographs()]


def load(name: str) -> Path | Image.Image:
    """The path of a photograph, or the drawn image."""
    return _ship() if name == SHIP else _photographs()[name]


def _photographs() -> dict[str, Path]:
    sklearn = find_spec("sklearn")
    if sklearn is None or sklearn.origin is None:
        return {}
    folder = Path(sklearn.origin).parent / "datasets" / "images"
    return {name: folder / file for name, file in PHOTOGRAPHS.items() if (folder / file).is_file()}


def _ship() -> Image.Image:
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
