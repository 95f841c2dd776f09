"""Objects in images from files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

from laplacianformer._util.devices import chosen_device
from laplacianformer._util.errors import about
from laplacianformer.data import _images as images
from laplacianformer.detection._find import find_objects
from laplacianformer.detection._weights import DetectorWeights


@dataclass(frozen=True)
class Object:
    """One object: its class, its category id in the data, score from 0 to 1, box as x0, y0, x1, y1, and mask."""

    name: str
    category_id: int
    score: float
    box: tuple[float, ...]
    mask: np.ndarray[Any, np.dtype[np.bool_]] | None


@dataclass(frozen=True)
class Detection:
    """The objects of one image, the highest score first; or the reason why there is no image."""

    path: Path
    image: Image.Image | None = None
    objects: tuple[Object, ...] = ()
    failure: str = ""


def detect(
    loaded: DetectorWeights, names: Sequence[str], *, threshold: float = 0.5, device: str | None = None
) -> Iterator[Detection]:
    """The objects in each file, in the order of `names` (files, folders, patterns). Memory: one image.

    Args:
        threshold: the lowest score that counts.
        device: such as "cuda:1"; None takes the accelerator if there is one, or the CPU.
    """
    chosen = chosen_device(device)
    model = loaded.model.to(chosen)
    for path, image, failure in images.read_each(names):
        if image is None:
            yield Detection(path, failure=failure)
            continue
        try:
            with about(loaded.path):
                found = find_objects(model, pil_to_tensor(image).to(chosen))
        except RuntimeError as error:  # nothing is left of its short side, or it needs more memory than there is
            yield Detection(path, failure=f"the detector can't take its {image.width} x {image.height}: {error}")
            continue
        yield Detection(path, image, tuple(_objects(loaded, found, threshold)))


def _objects(loaded: DetectorWeights, found: dict[str, torch.Tensor], threshold: float) -> Iterator[Object]:
    for index in found["scores"].argsort(descending=True).tolist():
        label, score = int(found["labels"][index]), float(found["scores"][index])
        if score < threshold:
            break
        mask = found["masks"][index].numpy() if "masks" in found else None
        box = tuple(round(value, 2) for value in found["boxes"][index].tolist())
        yield Object(loaded.classes[label - 1], loaded.category_ids[label - 1], score, box, mask)
