"""Generated shapes: the same from the same seed, with masks that are exactly what is visible."""

import numpy as np

from laplacianformer.detection import _shapes as shapes
from laplacianformer.detection._masks import decode


def masks_of(tree: dict, image: int) -> list[np.ndarray]:
    return [decode(one["segmentation"], 64, 64) for one in tree["annotations"] if one["image_id"] == image]


def test_the_same_seed_gives_the_same_bits_and_another_split_or_seed_others() -> None:
    tree, images = shapes.generate("train", 3, 64)
    again, same = shapes.generate("train", 3, 64)
    assert tree == again
    assert all(np.array_equal(images[name], same[name]) for name in images)
    first = next(iter(images.values()))
    for split, seed in (("val", 0), ("train", 1)):
        other = next(iter(shapes.generate(split, 1, 64, seed)[1].values()))
        assert not np.array_equal(first, other)


def test_masks_do_not_overlap_fill_their_boxes_and_leave_enough_to_see() -> None:
    tree, _ = shapes.generate("train", 40, 64)
    assert {one["category_id"] for one in tree["annotations"]} == set(range(1, len(shapes.CLASSES) + 1))
    counts = []
    for image in range(1, 41):
        masks = masks_of(tree, image)
        counts.append(len(masks))
        assert sum(masks, np.zeros((64, 64))).max() <= 1, "hidden parts are not in a mask"
    assert min(counts) == 0, "some images are empty"
    assert max(counts) >= 4
    for one in tree["annotations"]:
        mask = decode(one["segmentation"], 64, 64)
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        x, y, width, height = one["bbox"]
        assert (x, y, x + width, y + height) == (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert one["area"] == mask.sum() > 0


def test_a_mask_is_where_the_object_was_painted() -> None:
    """The colour inside differs from the background more than the noise does, on every object."""
    tree, images = shapes.generate("val", 20, 64)
    for entry in tree["images"]:
        pixels = images[entry["file_name"]].astype(float)
        masks = masks_of(tree, entry["id"])
        nothing = sum(masks, np.zeros((64, 64))) == 0
        for one in tree["annotations"]:
            if one["image_id"] == entry["id"]:
                x, y, width, height = (int(value) for value in one["bbox"])
                inside = decode(one["segmentation"], 64, 64).astype(bool)
                around = np.zeros((64, 64), bool)
                around[max(0, y - 3) : y + height + 3, max(0, x - 3) : x + width + 3] = True
                around &= nothing
                if around.sum() > 30 and inside.sum() > 30:
                    difference = np.abs(pixels[inside].mean(0) - pixels[around].mean(0)).max()
                    assert difference > 20


def test_rings_have_holes() -> None:
    tree, _ = shapes.generate("train", 40, 64)
    ring = shapes.CLASSES.index("ring") + 1
    largest = max((one for one in tree["annotations"] if one["category_id"] == ring), key=lambda one: one["area"])
    x, y, width, height = (int(value) for value in largest["bbox"])
    assert decode(largest["segmentation"], 64, 64)[y + height // 2, x + width // 2] == 0
