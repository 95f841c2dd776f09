"""Generated images of shapes that overlap, with exact masks of what is visible. No files are read.

An image is a function of the seed, the split and its number alone.
"""

import math
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("circle", "rectangle", "triangle", "star", "ring")
_EMPTY = 0.04  # fraction of images without objects
_LEAST, _MOST = 2, 7  # objects in the others
_SIZES = (0.17, 0.55)  # side of an object over that of the image, uniform on a logarithmic scale
_VISIBLE = 0.5  # at least this fraction of each object stays visible
_ATTEMPTS = 8  # positions tried for an object
_FINE = 4  # subpixels per side of a pixel, for smooth edges

Array = np.ndarray[Any, Any]


def draw(
    split: Literal["train", "val"], number: int, size: int, seed: int = 0
) -> tuple[Array, list[tuple[int, Array]]]:
    """One image (size, size, 3) of bytes, and for each object its category, from 1 on, and the mask (size, size) of
    what is visible of it."""
    generator = np.random.default_rng([seed, split == "val", number])
    image = _background(generator, size)
    wholes: list[Array] = []
    objects: list[tuple[int, Array]] = []
    for _ in range(0 if generator.random() < _EMPTY else generator.integers(_LEAST, _MOST + 1)):
        for _ in range(_ATTEMPTS):
            category = int(generator.integers(len(CLASSES))) + 1
            covered = _coverage(generator, CLASSES[category - 1], size)
            mask = covered >= 0.5
            left = [visible & ~mask for _, visible in objects]
            if all(a.sum() >= _VISIBLE * b.sum() for a, b in zip(left, wholes, strict=True)):
                objects = [(other, part) for (other, _), part in zip(objects, left, strict=True)] + [(category, mask)]
                wholes.append(mask)
                image += covered[..., None] * (_paint(generator, image, covered, size) - image)
                break
    noise = generator.normal(0, generator.uniform(2, 8), image.shape)
    return (image + noise).clip(0, 255).astype(np.uint8), objects


def _background(generator: np.random.Generator, size: int) -> Array:
    """A smooth gradient of colours."""
    coarse = generator.uniform(30, 225, 3) + generator.normal(0, 30, (4, 4, 3))
    small = Image.fromarray(coarse.clip(0, 255).astype(np.uint8))
    return np.asarray(small.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float64)


def _coverage(generator: np.random.Generator, name: str, size: int) -> Array:
    """How much of each pixel (size, size) an object of this kind covers, from 0 to 1; it lies inside the image."""
    low, high = (math.log(fraction * size) for fraction in _SIZES)
    side = math.exp(generator.uniform(low, high))
    outlines = _outlines(name, generator.uniform(0.6, 1.0), generator.uniform(0, 2 * np.pi))
    outlines = [side / 2 * outline for outline in outlines]
    reach = np.abs(outlines[0]).max(0)
    centre = reach + generator.uniform(0, 1, 2) * (size - 2 * reach)
    (left, top), (right, bottom) = np.floor(centre - reach).astype(int), np.ceil(centre + reach).astype(int)
    canvas = Image.new("L", (_FINE * (right - left), _FINE * (bottom - top)))
    for fill, outline in zip((255, 0), outlines, strict=False):
        points = _FINE * (centre + outline - (left, top))
        ImageDraw.Draw(canvas).polygon([tuple(point) for point in points], fill=fill)
    covered = np.zeros((size, size))
    covered[top:bottom, left:right] = np.asarray(canvas.reduce(_FINE), dtype=np.float64) / 255
    return covered


def _outlines(name: str, aspect: float, angle: float) -> list[Array]:
    """Corners (N, 2) around the origin, within a radius of about 1, and those of the hole if there is one."""
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


def _paint(generator: np.random.Generator, image: Array, covered: Array, size: int) -> Array:
    """A colour that differs from what it covers, brighter on one side."""
    behind = image[covered > 0].mean(0)
    while True:
        colour = generator.uniform(0, 255, 3)
        if np.abs(colour - behind).max() > 90:
            break
    slope, angle = generator.uniform(0, 60), generator.uniform(0, 2 * np.pi)
    positions = np.linspace(-0.5, 0.5, size)
    shade = slope * (math.cos(angle) * positions[None, :] + math.sin(angle) * positions[:, None])
    return colour + shade[..., None]
