"""Images with boxes and masks from COCO files: `instances_*.json` and a folder of images.

Mistakes are reported when the file is opened: an entry that makes no sense is an error that names it, an object that
nothing can be learned from (an empty box, a mask outside its box) is left out and named in the log.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.files import open_regular
from laplacianformer.data import _images as images
from laplacianformer.detection import _shapes as shapes
from laplacianformer.detection._checked_coco import checked_tree
from laplacianformer.detection._masks import decode
from laplacianformer.detection._recipe import DetectionData

logger = logging.getLogger(__name__)

Split = Literal["train", "val"]
Target = dict[str, Tensor]  # boxes (N, 4) as x0, y0, x1, y1; labels (N,) from 1; masks (N, H, W) where wanted
_OpenImage = Callable[[str, tuple[int, int]], Image.Image]
_NAMED = 20  # objects left out that the log names; more are only counted


class CocoImages:
    """Images by index with their targets. Labels are 1, 2, ... in the order of the category ids.

    Args:
        source: the name of the file in messages.
        open_image: reads the image of a file name; it is also given the (width, height) that the file states.
    """

    def __init__(self, tree: Any, source: str, open_image: _OpenImage, *, masks: bool) -> None:
        self.tree, left_out = checked_tree(tree, source, masks=masks)
        for line in left_out[:_NAMED]:
            logger.warning("object left out: %s", line)
        if len(left_out) > _NAMED:
            logger.warning("%d more objects left out of %s", len(left_out) - _NAMED, source)
        self.source, self.open_image, self.masks = source, open_image, masks
        categories = sorted(self.tree["categories"], key=lambda entry: entry["id"])
        self.classes = tuple(str(entry["name"]) for entry in categories)
        self.category_ids = tuple(int(entry["id"]) for entry in categories)
        self.labels = {number: label for label, number in enumerate(self.category_ids, 1)}
        self.entries = self.tree["images"]
        self.objects: dict[int, list[dict[str, Any]]] = {entry["id"]: [] for entry in self.entries}
        for entry in self.tree["annotations"]:
            self.objects[entry["image_id"]].append(entry)
        if masks:
            self._check_masks()

    def _check_masks(self) -> None:
        """Refuse an image whose masks, of all its objects at once, would be more than memory holds."""
        for entry in self.entries:
            count, pixels = len(self.objects[entry["id"]]), entry["width"] * entry["height"]
            if count * pixels > limits.MOST_MASKED:
                raise InputError(
                    f"{self.source}: {limits.one_line(entry['file_name'])} has {count} objects with masks of {pixels} "
                    f"pixels: at most {limits.MOST_MASKED} pixels are possible in all of an image"
                )

    def __len__(self) -> int:
        return len(self.entries)

    def name(self, index: int) -> str:
        return f"{limits.one_line(self.entries[index]['file_name'])} of {self.source}"

    def upright(self) -> Tensor:
        """(N,): whether each image is higher than wide, known without reading it."""
        return torch.tensor([entry["height"] > entry["width"] for entry in self.entries])

    def read(self, index: int) -> tuple[Image.Image, Target]:
        """An image and its target."""
        entry = self.entries[index]
        image = self.open_image(entry["file_name"], (entry["width"], entry["height"]))
        if image.size != (entry["width"], entry["height"]):
            raise InputError(
                f"is {image.width} x {image.height} pixels, {self.source} says {entry['width']} x {entry['height']}"
            )
        return image, self.target(index)

    def target(self, index: int) -> Target:
        """The objects of an image, without crowds, which are not single objects."""
        entry = self.entries[index]
        height, width = entry["height"], entry["width"]
        objects = [one for one in self.objects[entry["id"]] if not one["iscrowd"]]
        masks = [decode(one["segmentation"], height, width) for one in objects] if self.masks else []
        if self.masks:  # a sliver between the centres of pixels has no mask
            kept = [number for number, mask in enumerate(masks) if mask.any()]
            objects, masks = [objects[number] for number in kept], [masks[number] for number in kept]
        boxes = torch.tensor([one["bbox"] for one in objects], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        target = {"boxes": boxes, "labels": torch.tensor([self.labels[one["category_id"]] for one in objects]).long()}
        if self.masks:
            stacked = np.stack(masks) if masks else np.zeros((0, height, width), dtype=np.uint8)
            target["masks"] = torch.from_numpy(stacked)
        return target


def open_coco(data: DetectionData, split: Split, *, masks: bool, seed: int = 0) -> CocoImages:
    """The images of a split."""
    if data.reader == "shapes":
        if data.root:
            raise InputError(f"the reader 'shapes' reads no files: give --data coco:{data.root} to train on it")
        count = data.shapes_train if split == "train" else data.shapes_val
        tree, arrays = shapes.generate(split, count, data.shapes_size, seed)
        return CocoImages(tree, f"shapes ({split})", _ArrayImages(arrays), masks=masks)
    if data.root is None:
        raise InputError("the reader 'coco' needs a folder: give --data DIR")
    root = Path(data.root)
    if not root.is_dir():
        raise InputError(f"there is no folder {root}: give --data a folder with instances_{split}*.json")
    stated = data.train_annotations if split == "train" else data.val_annotations
    file = root / stated if stated else _find_annotations(root, split)
    stated = data.train_images if split == "train" else data.val_images
    folder = root / stated if stated else _find_images(root, file)
    return CocoImages(_read_json(file), str(file), _FileImages(folder), masks=masks)


class _ArrayImages:
    """Images in memory, by name."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays

    def __call__(self, name: str, size: tuple[int, int]) -> Image.Image:
        return Image.fromarray(self.arrays[name])


class _FileImages:
    """Images in a folder, by name: rotated as their EXIF data says, or as stored if only then the size is as stated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, size: tuple[int, int]) -> Image.Image:
        path = self.folder / name
        if not path.is_file():
            raise InputError(f"there is no {limits.one_line(str(path))}")
        image = images.read(path)
        return images.read(path, upright=False) if image.size == size[::-1] != size else image


def _read_json(path: Path) -> Any:
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror or error}") from None
    return limits.parse_json(data, str(path))


def _find_annotations(root: Path, split: Split) -> Path:
    found = sorted(path for folder in (root, root / "annotations") for path in folder.glob(f"instances_{split}*.json"))
    if not found:
        raise InputError(f"neither {root} nor its folder annotations/ has a file instances_{split}*.json")
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(root)) for path in found)
        raise InputError(f"{root} has several annotations: choose one with data.{split}_annotations, of {names}")
    return found[0]


def _find_images(root: Path, annotations: Path) -> Path:
    """The folder with the name of the file: train2017/ for instances_train2017.json, also in images/."""
    name = annotations.stem.removeprefix("instances_")
    folders = [root / name, root / "images" / name]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise InputError(f"there is no {folders[0]} for {annotations.name}: name it with data.train_images or val_images")
