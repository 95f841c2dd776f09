"""Objects in pictures from files: `laplacianformer detect`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torchvision.transforms.v2.functional import pil_to_tensor

from laplacianformer._util.devices import chosen_device
from laplacianformer._util.errors import InputError
from laplacianformer._util.files import write_json
from laplacianformer.classification.inference import shown
from laplacianformer.data import images
from laplacianformer.detection.find import find_objects
from laplacianformer.detection.masks import encode
from laplacianformer.detection.pictures import Drawn, save, with_objects
from laplacianformer.detection.weights import DetectorWeights, load_detector


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
    """The objects of one picture, the most certain first; or the reason why it could not be read."""

    image: Path
    picture: Image.Image | None = None
    objects: tuple[Object, ...] = ()
    failure: str = ""


def run(names: Sequence[str], *, file: Path, threshold: float, output: Path, device: str | None) -> int:
    """The command. Returns its exit code: 0, 1 where some pictures failed, 2 where all did."""
    loaded = load_detector(file)
    entries, failures, free = [], [], _FreeNames(output, [path for path, _ in images.find(names)])
    table = Table()
    for title in ("image", "objects", "drawn in"):
        table.add_column(title, overflow="fold")
    for found in detect(loaded, names, threshold=threshold, device=device):
        if found.picture is None:
            failures.append({"image": str(found.image), "reason": found.failure})
            Console(stderr=True, soft_wrap=True).print(Text(f"{shown(found.image)}: {found.failure}", "red"))
            continue
        drawn = free.name(found.image.stem)
        objects = [Drawn(one.box, f"{one.name} {100 * one.score:.0f} %", one.mask) for one in found.objects]
        save(with_objects(found.picture, objects), drawn)
        entries.append(as_dict(found, drawn))
        table.add_row(Text(shown(found.image)), _counts(found.objects), Text(str(drawn)))
    if entries:
        Console().print(table)
    stated = {"file": str(file), "detector": loaded.metadata["architecture"], "classes": loaded.classes}
    write_json(
        output / "detections.json",
        {"weights": stated, "threshold": threshold, "images": entries, "failures": failures},
    )
    Console().print(Text(f"Saved: {output / 'detections.json'}"), soft_wrap=True)
    return 0 if not failures else 1 if entries else 2


def detect(
    loaded: DetectorWeights, names: Sequence[str], *, threshold: float = 0.5, device: str | None = None
) -> Iterator[Detection]:
    """The objects of at least this score in each file, in the order of `names` (files, folders, patterns)."""
    place = chosen_device(device)
    model = loaded.model.to(place)
    for path, problem in images.find(names):
        if problem:
            yield Detection(path, failure=problem)
            continue
        try:
            picture = images.read(path)
        except InputError as error:
            yield Detection(path, failure=str(error))
            continue
        try:
            found = find_objects(model, pil_to_tensor(picture).to(place))
        except RuntimeError as error:  # nothing is left of its short side, or it needs more memory than there is
            yield Detection(path, failure=f"the detector can't take its {picture.width} x {picture.height}: {error}")
            continue
        if not all(value.isfinite().all() for value in found.values()):
            raise InputError(f"{loaded.path} gives outputs that are not finite: its training went wrong")
        yield Detection(path, picture, tuple(_objects(loaded, found, threshold)))


def _objects(loaded: DetectorWeights, found: dict[str, torch.Tensor], threshold: float) -> Iterator[Object]:
    for number in found["scores"].argsort(descending=True).tolist():
        label, score = int(found["labels"][number]), float(found["scores"][number])
        if score < threshold:
            break
        mask = found["masks"][number].numpy() if "masks" in found else None
        box = tuple(round(value, 2) for value in found["boxes"][number].tolist())
        yield Object(loaded.classes[label - 1], loaded.category_ids[label - 1], score, box, mask)


def as_dict(found: Detection, drawn: Path) -> dict[str, Any]:
    """For JSON: masks as COCO's run lengths."""
    assert found.picture is not None
    return {
        "image": str(found.image),
        "width": found.picture.width,
        "height": found.picture.height,
        "drawn": str(drawn),
        "objects": [
            {
                "class": one.name,
                "category_id": one.category_id,
                "score": round(one.score, 4),
                "box": one.box,
                **({"mask": encode(one.mask)} if one.mask is not None else {}),
            }
            for one in found.objects
        ],
    }


def _counts(objects: Sequence[Object]) -> Text:
    names = [one.name for one in objects]
    return Text(", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "none")


class _FreeNames:
    """Files in a folder for pictures that may have the same name, none of them one of the pictures themselves."""

    def __init__(self, folder: Path, pictures: Sequence[Path]) -> None:
        self.folder, self.used = folder, {path.resolve() for path in pictures}

    def name(self, stem: str) -> Path:
        free, number = self.folder / f"{stem}.png", 1
        while free.resolve() in self.used:
            number += 1
            free = self.folder / f"{stem}-{number}.png"
        self.used.add(free.resolve())
        return free
