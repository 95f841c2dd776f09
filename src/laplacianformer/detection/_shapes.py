"""Generated images of shapes in COCO format."""

from typing import Any, Literal

import numpy as np

from laplacianformer.data._shapes import CLASSES, draw
from laplacianformer.detection._masks import encode

Array = np.ndarray[Any, Any]


def generate(
    split: Literal["train", "val"], count: int, size: int, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The contents of a COCO file, and the images (size, size, 3) of bytes by file name."""
    tree: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)],
    }
    images = {}
    for number in range(1, count + 1):
        name = f"{split}-{number:05}.png"
        images[name], objects = draw(split, number, size, seed)
        tree["images"].append({"id": number, "file_name": name, "width": size, "height": size})
        for category, mask in objects:
            tree["annotations"].append(_annotation(len(tree["annotations"]) + 1, number, category, mask))
    return tree, images


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
