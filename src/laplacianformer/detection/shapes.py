"""Generated pictures of shapes that overlap, with exact masks of what is visible, in COCO format. Nothing is read.

A picture is a function of the seed, the split and its number alone.
"""

import math
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw

from laplacianformer.detection.masks import encode

CLASSES = ("circle", "rectangle", "triangle", "star", "ring")
EMPTY = 0.04  # share of pictures without objects
LEAST, MOST = 2, 7  # objects in the others
SIZES = (0.17, 0.55)  # side of an object over that of the picture, evenly on a logarithmic scale
VISIBLE = 0.5  # no object is hidden more than to this share
ATTEMPTS = 8  # places tried for an object
FINE = 4  # pixels a side that a pixel is divided into, for smooth edges

Array = np.ndarray[Any, Any]


def generate(
    split: Literal["train", "val"], count: int, size: int, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Array]]:
    """A COCO tree, and the pictures (size, size, 3) of bytes by file name."""
    tree: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)],
    }
    pictures = {}
    for number in range(1, count + 1):
        chance = np.random.default_rng([seed, split == "val", number])
        picture, objects = draw(chance, size)
        name = f"{split}-{number:05}.png"
        pictures[name] = picture
        tree["images"].append({"id": number, "file_name": name, "width": size, "height": size})
        for category, mask in objects:
            tree["annotations"].append(_annotation(len(tree["annotations"]) + 1, number, category, mask))
    return tree, pictures


def draw(chance: np.random.Generator, size: int) -> tuple[Array, list[tuple[int, Array]]]:
    """One picture, and for each object its category and the mask (size, size) of what is visible of it."""
    picture = _background(chance, size)
    wholes: list[Array] = []
    objects: list[tuple[int, Array]] = []
    for _ in range(0 if chance.random() < EMPTY else chance.integers(LEAST, MOST + 1)):
        for _ in range(ATTEMPTS):
            category = int(chance.integers(len(CLASSES))) + 1
            covered = _coverage(chance, CLASSES[category - 1], size)
            mask = covered >= 0.5
            left = [visible & ~mask for _, visible in objects]
            if all(a.sum() >= VISIBLE * b.sum() for a, b in zip(left, wholes, strict=True)):
                objects = [(other, part) for (other, _), part in zip(objects, left, strict=True)] + [(category, mask)]
                wholes.append(mask)
                picture += covered[..., None] * (_paint(chance, picture, covered, size) - picture)
                break
    noise = chance.normal(0, chance.uniform(2, 8), picture.shape)
    return (picture + noise).clip(0, 255).astype(np.uint8), objects


def _background(chance: np.random.Generator, size: int) -> Array:
    """Colours that change slowly."""
    coarse = chance.uniform(30, 225, 3) + chance.normal(0, 30, (4, 4, 3))
    small = Image.fromarray(coarse.clip(0, 255).astype(np.uint8))
    return np.asarray(small.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float64)


def _coverage(chance: np.random.Generator, name: str, size: int) -> Array:
    """How much of each pixel (size, size) an object of this kind covers, from 0 to 1; all of it is in the picture."""
    low, high = (math.log(share * size) for share in SIZES)
    side = math.exp(chance.uniform(low, high))
    outlines = _outlines(name, chance.uniform(0.6, 1.0), chance.uniform(0, 2 * np.pi))
    outlines = [side / 2 * outline for outline in outlines]
    reach = np.abs(outlines[0]).max(0)
    centre = reach + chance.uniform(0, 1, 2) * (size - 2 * reach)
    (left, top), (right, bottom) = np.floor(centre - reach).astype(int), np.ceil(centre + reach).astype(int)
    canvas = Image.new("L", (FINE * (right - left), FINE * (bottom - top)))
    for fill, outline in zip((255, 0), outlines, strict=False):
        points = FINE * (centre + outline - (left, top))
        ImageDraw.Draw(canvas).polygon([tuple(point) for point in points], fill=fill)
    covered = np.zeros((size, size))
    covered[top:bottom, left:right] = np.asarray(canvas.reduce(FINE), dtype=np.float64) / 255
    return covered


def _outlines(name: str, aspect: float, angle: float) -> list[Array]:
    """Corners (N, 2) around the origin, within a radius of about 1, and of the hole where there is one."""
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    circle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    round_one = np.stack([np.cos(circle), aspect * np.sin(circle)], 1)
    if name in ("circle", "ring"):
        return [round_one @ turn, *([0.55 * round_one @ turn] if name == "ring" else [])]
    if name == "rectangle":
        corners = np.array([[-1, -aspect], [1, -aspect], [1, aspect], [-1, aspect]]) * 0.85
    else:
        points = 3 if name == "triangle" else 10
        radius = np.where(np.arange(points) % 2 * (name == "star"), 0.42, 1.0)
        steps = np.linspace(0, 2 * np.pi, points, endpoint=False)
        corners = np.stack([radius * np.cos(steps), radius * np.sin(steps)], 1)
    return [corners @ turn]


def _paint(chance: np.random.Generator, picture: Array, covered: Array, size: int) -> Array:
    """A colour that differs from what it covers, brighter on one side."""
    behind = picture[covered > 0].mean(0)
    while True:
        colour = chance.uniform(0, 255, 3)
        if np.abs(colour - behind).max() > 90:
            break
    slope, angle = chance.uniform(0, 60), chance.uniform(0, 2 * np.pi)
    places = np.linspace(-0.5, 0.5, size)
    shade = slope * (math.cos(angle) * places[None, :] + math.sin(angle) * places[:, None])
    return colour + shade[..., None]


def _annotation(number: int, image: int, category: int, mask: Array) -> dict[str, Any]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "iscrowd": 0,
        "area": int(mask.sum()),
        "bbox": [float(length) for length in box],
        "segmentation": encode(mask),
    }
