"""Boxes, masks and labels on images."""

import numpy as np
from PIL import Image

from laplacianformer.detection._pictures import Drawn, with_objects
from laplacianformer.plots._pillow import COLOURS


def test_masks_boxes_and_labels_are_in_the_right_position() -> None:
    grey = Image.new("RGB", (480, 480), (128, 128, 128))
    mask = np.zeros((480, 480), dtype=bool)
    mask[200:300, 100:200] = True
    pixels = np.asarray(with_objects(grey, [Drawn((100, 200, 250, 350), "thing 90 %", mask)])).astype(int)
    assert tuple(pixels[200, 180]) == COLOURS[0], "the box"
    inside, outside = pixels[250, 150], pixels[330, 230]
    assert tuple(outside) == (128, 128, 128)
    assert abs(inside - (0.55 * 128 + 0.45 * np.array(COLOURS[0]))).max() < 3, "the image shows through the mask"
    plate = pixels[185:199, 101:150]
    assert (plate == np.array(COLOURS[0])).all(-1).mean() > 0.3, "the label has a plate above the box"
    assert (plate < 40).all(-1).any(), "and dark letters"


def test_labels_of_objects_at_the_border_stay_in_the_image_and_apart() -> None:
    grey = Image.new("RGB", (480, 480), (128, 128, 128))
    objects = [Drawn((470, 0, 480, 40), "at the right border"), Drawn((470, 0, 480, 40), "behind it")]
    pixels = np.asarray(with_objects(grey, objects)).astype(int)
    changed = (pixels != 128).any(-1)
    assert changed[:, :400].any(), "the plate moved to the left"
    for colour in COLOURS[:2]:
        assert (pixels == np.array(colour)).all(-1).sum() > 300, "both plates are visible"
