"""How good a detector is on annotated pictures: `laplacianformer eval` with the weights of a detector."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from PIL import Image
from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import track
from rich.text import Text

from laplacianformer._util.devices import chosen_device, device_name
from laplacianformer._util.errors import InputError
from laplacianformer._util.files import write_json
from laplacianformer.detection.batches import HeldOut, held_out_pictures
from laplacianformer.detection.coco import CocoImages, Split, open_coco
from laplacianformer.detection.find import Prediction, find_objects
from laplacianformer.detection.pictures import Drawn, sheet, with_objects
from laplacianformer.detection.recipe import DetectionData
from laplacianformer.detection.scores import as_results, coco_scores, table
from laplacianformer.detection.weights import DetectorWeights, load_detector

SPLITS: dict[str, Split] = {"train": "train", **dict.fromkeys(("validation", "val", "valid", "eval", "test"), "val")}
SHOWN = 5  # pictures on the sheet
SIDE = 320  # pixels of each
CERTAIN = 0.5  # score of the objects on it


def run(*, file: Path, data: str, split: str, output: Path, workers: int, device: str | None) -> int:
    """The command. Returns its exit code: 0, or 1 where some pictures could not be read."""
    loaded = load_detector(file)
    if split not in SPLITS:
        raise InputError(f"--split {split}: expected one of {', '.join(SPLITS)}")
    images = open_data(loaded, data, SPLITS[split])
    place = chosen_device(device)
    output.mkdir(parents=True, exist_ok=True)
    model = loaded.model.to(place)
    results: list[dict[str, Any]] = []
    unreadable: dict[int, str] = {}
    seconds, columns = 0.0, list[tuple[Image.Image, Image.Image]]()
    for number, picture, reason in _pictures(images, workers):
        if picture is None:
            unreadable[number] = reason
            continue
        begin = time.perf_counter()
        found = find_objects(model, picture.to(place))
        seconds += time.perf_counter() - begin
        results += as_results(images, number, found)
        if len(columns) < SHOWN:
            columns.append(_truth_and_found(images, number, found, loaded))
    if not columns:
        raise InputError(
            f"none of the {len(images)} pictures can be read; the first: {next(iter(unreadable.values()))}"
        )
    scores, count = coco_scores(images, results, unreadable), len(images) - len(unreadable)
    stated = {"weights": str(file), "data": data, "split": split, "device": device_name(place)}
    numbers = {"images": count, "images_per_second": count / seconds, "unreadable": list(unreadable.values())}
    write_json(output / "eval.json", {**stated, **numbers, **scores})
    sheet([list(row) for row in zip(*columns, strict=True)], ["annotated", "found"], output / "detections.png", SIDE)
    console = Console()
    console.print(table(scores, f"{count:,} pictures, {count / seconds:.1f} a second"))
    console.print(Text(f"Saved: {output / 'eval.json'}, {output / 'detections.png'}"), soft_wrap=True)
    for line in unreadable.values():
        Console(stderr=True, soft_wrap=True).print(Text(f"not counted: {line}", "red"))
    return 1 if unreadable else 0


def open_data(loaded: DetectorWeights, data: str, split: Split) -> CocoImages:
    """`DIR`, a COCO data set, or `shapes`, if its categories are those of the weights."""
    recipe = yaml.safe_load(loaded.metadata.get("recipe", "{}"))
    reader, root = ("shapes", None) if data in ("shapes", "shapes:") else ("coco", data.removeprefix("coco:"))
    stated = {**recipe.get("data", {}), "reader": reader, "root": root}
    opened = TypeAdapter(DetectionData).validate_python(stated)
    seed = recipe.get("run", {}).get("seed", 0)
    images = open_coco(opened, split, masks=loaded.has_masks, seed=seed)
    if (images.classes, images.category_ids) != (loaded.classes, loaded.category_ids):
        raise InputError(
            f"{images.source} has the categories {_few(images)}, {loaded.path} knows {_few(loaded)}: "
            "expected the same ids and names"
        )
    return images


def _few(named: CocoImages | DetectorWeights) -> str:
    pairs = [f"{number} {name}" for number, name in zip(named.category_ids, named.classes, strict=True)]
    return ", ".join([*pairs[:5], *(["..."] if len(pairs) > 5 else [])])


def _pictures(images: CocoImages, workers: int) -> Iterator[HeldOut]:
    console = Console(stderr=True)
    loader = held_out_pictures(images, workers)
    yield from track(loader, "evaluating", console=console, transient=True, disable=not console.is_terminal)


def _truth_and_found(
    images: CocoImages, number: int, found: Prediction, loaded: DetectorWeights
) -> tuple[Image.Image, Image.Image]:
    picture, target = images.read(number)
    certain = {name: value[found["scores"] >= CERTAIN] for name, value in found.items()}
    return (
        with_objects(picture, _drawn(target, images.classes), SIDE),
        with_objects(picture, _drawn(certain, loaded.classes), SIDE),
    )


def _drawn(objects: dict[str, Any], classes: tuple[str, ...]) -> list[Drawn]:
    masks = objects["masks"].bool().numpy() if "masks" in objects else [None] * len(objects["boxes"])
    scores = [f" {100 * score:.0f} %" for score in objects["scores"].tolist()] if "scores" in objects else None
    return [
        Drawn(box, classes[label - 1] + (scores[place] if scores else ""), mask)
        for place, (box, label, mask) in enumerate(
            zip(objects["boxes"].tolist(), objects["labels"].tolist(), masks, strict=True)
        )
    ]
