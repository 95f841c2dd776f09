"""Pathfinder: two dots in an image of dashed paths, and whether one path connects them.

Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units", 2018, with the numbers
that Long Range Arena states for images of 32 x 32 pixels; the drawing is our own. An image is a function of the seed
and its number alone.

Two long paths begin near the centre and grow in turns, one dash at a time. One dot is at the beginning of one of them;
the other dot is at the end of the same path ("connected") or of the other one. Short paths distract. No path comes near
another one or itself.
"""

import math
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from laplacianformer.data import mix

SIDE = 32
CLASSES = ("separate", "connected")
_BORDER = 1.0  # pixels that stay free
_DASH, _MARGIN = 2.0, 1.0  # length of a dash, and of what is free before and after it
_STEP = _DASH + 2 * _MARGIN  # from a dash to the next
_DISTANCE = 2 * _MARGIN  # between paths
_THICKNESS = 0.5
_DASHES, _DISTRACTOR_DASHES, _DISTRACTORS = 14, 14 // 3, 20 // (14 // 3)
_SEED_DISTANCE = 7.0  # between the beginnings of the two paths; twice that from the border
_RADIUS = 1.5  # of the dots
_CONTRASTS = (1.5, 2.0)  # of the two paths and of those that distract; a dash covers half of a pixel at most
_DOT_CONTRAST = 1.0
_ATTEMPTS = 5  # for a path that distracts
_FINE = 4  # cells per pixel of the map of what is taken
_SMOOTH = 8  # subpixels per pixel of the drawing

Point = tuple[float, float]
Array = np.ndarray[Any, Any]


@dataclass
class Scene:
    """The paths of an image, as points (x, y) in pixels between which the dashes lie, and its two dots."""

    paths: tuple[list[Point], list[Point]]
    distractors: list[list[Point]] = field(default_factory=list)
    dots: tuple[Point, Point] = ((0.0, 0.0), (0.0, 0.0))


def generate(seed: int, number: int) -> tuple[Array, int]:
    """An image (32, 32) of bytes, and its label: 1 if the dots are connected."""
    scene, label = arrange(seed, number)
    return render(scene), label


def arrange(seed: int, number: int) -> tuple[Scene, int]:
    """The scene of an image, and its label."""
    chance = random.Random(mix(seed, number))
    label = int(2 * chance.random())
    while (scene := _two_paths(chance)) is None:
        pass
    first = int(2 * chance.random())
    last = first if label else 1 - first
    begin, end = scene.paths[first], scene.paths[last]
    scene.dots = _along(begin[0], begin[1], _MARGIN), _along(end[-1], end[-2], _MARGIN)
    return scene, label


# ---- paths ----


class _Taken:
    """A map of what is near a path or the border, at `_FINE` cells per pixel."""

    def __init__(self, cells: Array | None = None) -> None:
        if cells is None:
            cells = np.ones((SIDE * _FINE, SIDE * _FINE), dtype=bool)
            free = slice(round(_BORDER * _FINE), round((SIDE - _BORDER) * _FINE))
            cells[free, free] = False
        self.cells = cells

    def copy(self) -> "_Taken":
        return _Taken(self.cells.copy())

    def allows(self, start: Point, ends: Array) -> Array:
        """Which of the lines from a point to others (K, 2) keep their distance from all paths."""
        cells = np.floor(_FINE * (start + _ALONG * (ends[:, None] - start))).astype(np.int64)
        inside = ((cells >= 0) & (cells < len(self.cells))).all(axis=(1, 2))
        cells = cells.clip(0, len(self.cells) - 1)
        taken = self.cells[cells[..., 1], cells[..., 0]].any(axis=1)
        return np.logical_and(inside, np.logical_not(taken))

    def add(self, start: Point, end: Point) -> None:
        """Lines that come later stay away from this one."""
        reach = len(_DISC) // 2
        cells = np.floor(_FINE * (np.array(start) + _ALONG * np.subtract(end, start))).astype(np.int64)
        for x, y in cells.tolist():
            top, left = max(0, y - reach), max(0, x - reach)
            window = self.cells[top : y + reach + 1, left : x + reach + 1]
            window |= _DISC[top - y + reach :, left - x + reach :][: window.shape[0], : window.shape[1]]


_ALONG = np.linspace(0, 1, 2 * round(_STEP) + 1)[:, None]  # points on a line, half a pixel apart
_REACH = np.arange(-round(_DISTANCE * _FINE), round(_DISTANCE * _FINE) + 1)
_DISC = _REACH[:, None] ** 2 + _REACH[None] ** 2 <= _REACH[-1] ** 2
_TURNS = np.linspace(-math.pi / 2, math.pi / 2, 33)[1:-1]
_LIKELY = np.cos(_TURNS) ** 2


@dataclass
class _Growing:
    """A path that is being drawn. Its last line is not in the map yet: the next one begins where it ends."""

    points: list[Point]
    angle: float

    def extend(self, chance: random.Random, taken: _Taken) -> bool:
        """Add a dash, if there is space for one: the less it turns, the likelier."""
        angles = self.angle + _TURNS
        ends = self.points[-1] + _STEP * np.stack([np.cos(angles), np.sin(angles)], 1)
        weights = (_LIKELY * taken.allows(self.points[-1], ends)).cumsum()
        if weights[-1] < 1e-4:
            return False
        index = int(np.searchsorted(weights, weights[-1] * chance.random(), side="right"))
        self.angle = float(angles[index])
        self.points.append((float(ends[index, 0]), float(ends[index, 1])))
        return True

    def add_line(self, taken: _Taken, last: int = 1) -> None:
        """Add its last line, or the one before it, to the map; a path without lines is a point."""
        if len(self.points) > last:
            taken.add(self.points[-last - 1], self.points[-last])
        elif last == 1:
            taken.add(self.points[0], self.points[0])


def _two_paths(chance: random.Random) -> Scene | None:
    """A scene without dots; None where a path has come to a dead end."""
    taken = _Taken()
    first = (_near_centre(chance), _near_centre(chance))
    second = _towards(first, 2 * math.pi * chance.random(), _SEED_DISTANCE)
    one, two = (_Growing([start], 2 * math.pi * chance.random()) for start in (first, second))
    for _ in range(_DASHES):
        for path, other in ((one, two), (two, one)):
            with_other = taken.copy()
            other.add_line(with_other)
            if not path.extend(chance, with_other):
                return None
            path.add_line(taken, 2)
    one.add_line(taken)
    two.add_line(taken)
    return Scene((one.points, two.points), _distractors(chance, taken))


def _distractors(chance: random.Random, taken: _Taken) -> list[list[Point]]:
    """As many short paths as there is space for."""
    found: list[list[Point]] = []
    for _ in range(_DISTRACTORS * _ATTEMPTS):
        free = np.flatnonzero(~taken.cells)
        if len(found) == _DISTRACTORS or len(free) == 0:
            break
        y, x = divmod(int(free[int(len(free) * chance.random())]), len(taken.cells))
        path, trial = _Growing([((x + 0.5) / _FINE, (y + 0.5) / _FINE)], 2 * math.pi * chance.random()), taken.copy()
        for _ in range(_DISTRACTOR_DASHES):
            if not path.extend(chance, trial):
                break
            path.add_line(trial, 2)
        else:
            path.add_line(trial)
            taken = trial
            found.append(path.points)
    return found


def _near_centre(chance: random.Random) -> float:
    return 2 * _SEED_DISTANCE + (SIDE - 4 * _SEED_DISTANCE) * chance.random()


def _towards(point: Point, angle: float, distance: float) -> Point:
    return point[0] + distance * math.cos(angle), point[1] + distance * math.sin(angle)


def _along(start: Point, end: Point, distance: float) -> Point:
    """The point this far from the start of a line of length `_STEP`."""
    part = distance / _STEP
    return start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1])


# ---- drawing ----


def render(scene: Scene) -> Array:
    """The image (32, 32) of bytes; the brightest pixel is 255."""
    image = np.zeros((SIDE, SIDE))
    for contrast, paths in zip(_CONTRASTS, (scene.paths, scene.distractors), strict=True):
        lines = [(start, end) for path in paths for start, end in pairwise(path)]
        dashes = [(_along(start, end, _MARGIN), _along(end, start, _MARGIN)) for start, end in lines]
        image = np.maximum(image, contrast * _covered(lines=dashes))
    image = np.maximum(image, _DOT_CONTRAST * _covered(dots=scene.dots))
    return (255 * image / image.max()).round().astype(np.uint8)


def _covered(lines: list[tuple[Point, Point]] | None = None, dots: tuple[Point, ...] = ()) -> Array:
    """How much of each pixel is covered, from 0 to 1."""
    canvas = Image.new("L", (SIDE * _SMOOTH, SIDE * _SMOOTH))
    draw = ImageDraw.Draw(canvas)
    for (x0, y0), (x1, y1) in lines or []:
        ends = (x0 * _SMOOTH, y0 * _SMOOTH, x1 * _SMOOTH, y1 * _SMOOTH)
        draw.line(ends, fill=255, width=round(_THICKNESS * _SMOOTH))
    for x, y in dots:
        box = ((x - _RADIUS) * _SMOOTH, (y - _RADIUS) * _SMOOTH, (x + _RADIUS) * _SMOOTH, (y + _RADIUS) * _SMOOTH)
        draw.ellipse(box, fill=255)
    return np.asarray(canvas.reduce(_SMOOTH), dtype=np.float64) / 255
