"""Pathfinder: the label says whether the dots are on one path, checked by flooding a drawing without gaps."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from laplacianformer.sequences._pathfinder import SIDE, Scene, arrange, generate, render

FINE = 8  # cells per pixel of the drawing without gaps


def without_gaps(scene: Scene) -> np.ndarray:
    """Every path as one line."""
    canvas = Image.new("1", (SIDE * FINE, SIDE * FINE))
    for path in (*scene.paths, *scene.distractors):
        ImageDraw.Draw(canvas).line([(x * FINE, y * FINE) for x, y in path], fill=1, width=5)
    return np.asarray(canvas)


def flooded(ink: np.ndarray, start: tuple[float, float]) -> np.ndarray:
    """The cells with ink that can be reached from a point over cells with ink."""
    seen = np.zeros_like(ink)
    waiting = [(round(start[1] * FINE), round(start[0] * FINE))]
    assert ink[waiting[0]], "a dot lies on a path"
    while waiting:
        y, x = waiting.pop()
        if 0 <= y < len(ink) and 0 <= x < len(ink) and ink[y, x] and not seen[y, x]:
            seen[y, x] = True
            waiting += [(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    return seen


@pytest.mark.parametrize("number", range(20))
def test_the_dots_are_connected_where_the_label_says_so(number: int) -> None:
    scene, label = arrange(2, number)
    first, second = scene.dots
    reached = flooded(without_gaps(scene), first)
    assert reached[round(second[1] * FINE), round(second[0] * FINE)] == label


def middle(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    return (start[0] + end[0]) / 2, (start[1] + end[1]) / 2


@pytest.mark.parametrize("number", range(8))
def test_no_path_touches_another_one(number: int) -> None:
    scene, _ = arrange(2, number)
    ink, paths = without_gaps(scene), (*scene.paths, *scene.distractors)
    begins, ends = [middle(*path[:2]) for path in paths], [middle(*path[-2:]) for path in paths]
    for index, begin in enumerate(begins):
        reached = flooded(ink, begin)
        found = [bool(reached[round(y * FINE), round(x * FINE)]) for x, y in ends]
        assert found == [other == index for other in range(len(paths))]


def test_scenes_have_the_published_numbers() -> None:
    scenes = [arrange(0, number)[0] for number in range(12)]
    for scene in scenes:
        assert [len(path) - 1 for path in scene.paths] == [14, 14]
        assert {len(path) - 1 for path in scene.distractors} <= {4}
        (x0, y0), (x1, y1) = scene.paths[0][0], scene.paths[1][0]
        assert np.hypot(x1 - x0, y1 - y0) == pytest.approx(7)
        points = np.array([point for path in (*scene.paths, *scene.distractors) for point in path])
        assert points.min() >= 1
        assert points.max() <= 31
    assert max(len(scene.distractors) for scene in scenes) == 5
    assert min(len(scene.distractors) for scene in scenes) >= 2


@pytest.mark.slow
def test_both_labels_are_as_frequent_and_do_not_show_in_the_brightness() -> None:
    drawn = [generate(1, number) for number in range(80)]
    labels = np.array([label for _, label in drawn])
    assert 25 < labels.sum() < 55
    means = np.array([pixels.mean() for pixels, _ in drawn])
    difference = means[labels == 1].mean() - means[labels == 0].mean()
    assert abs(difference) < 3 * means.std() * 2 / np.sqrt(len(means))


def test_an_image_shows_dashes_with_gaps_and_two_dots() -> None:
    scene, _ = arrange(0, 3)
    pixels = render(scene)
    assert (pixels.shape, pixels.dtype, pixels.max()) == ((32, 32), np.uint8, 255)
    without_dots = render(Scene(scene.paths, scene.distractors, ((-9.0, -9.0), (-9.0, -9.0))))
    for x, y in scene.dots:
        column, row = int(x), int(y)
        assert pixels[row, column] > 150
        window = np.s_[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2]
        assert pixels[window].mean() > without_dots[window].mean() + 40
    for path in scene.paths:
        for x, y in path[1:-1]:  # between two dashes
            if min(np.hypot(x - a, y - b) for a, b in scene.dots) > 4:
                assert pixels[int(y), int(x)] < 128


def test_the_same_seed_and_number_give_the_same_image() -> None:
    first, second = generate(4, 2), generate(4, 2)
    assert np.array_equal(first[0], second[0])
    assert first[1] == second[1]
    assert not np.array_equal(first[0], generate(4, 3)[0])
    assert not np.array_equal(first[0], generate(5, 2)[0])
