"""Generated weights files, recipes, COCO files and images."""

import copy
import io
import json
import os
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.classification import load_recipe
from laplacianformer.classification._model import create_model
from laplacianformer.data import _images as images
from laplacianformer.detection import load_recipe as load_detection_recipe
from laplacianformer.detection._weights import load_detector, save_detector
from laplacianformer.training import _recipes as recipes
from laplacianformer.weights import _description, load_weights
from tests.detection import helpers as detection
from tests.fuzz import nasty
from tests.fuzz.outcome import ClearError, SilentlyWrong
from tests.helpers import picture, save_small

Case = Callable[[], None]


class Samples:
    """Right inputs, made once, that the cases change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        save_small(folder / "classifier.safetensors", metrics='{"accuracy": 0.5}')
        save_detector(folder / "detector.safetensors", detection.small("retinanet"), classes=["a", "b", "c"])
        self.coco = detection.coco_folder(folder / "coco", train=2, val=1)
        self.tree = json.loads((self.coco / "instances_train.json").read_text())
        self.recipes = {name: yaml.safe_load(recipes._read(name)) for name in recipes.names()}
        self.pictures = [_encoded(form) for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")]


def _encoded(form: str) -> bytes:
    file = io.BytesIO()
    picture(1, (24, 18)).save(file, form)
    return file.getvalue()


def weights_file(rng: random.Random, samples: Samples) -> Case:
    """A weights file with other metadata, another header, or damaged bytes."""
    name, load = rng.choice([("classifier.safetensors", load_weights)] * 3 + [("detector.safetensors", load_detector)])
    data = (samples.folder / name).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, tensors = json.loads(data[8 : 8 + length]), data[8 + length :]
    kind = rng.random()
    if kind < 0.7:
        said = header["__metadata__"]
        key = rng.choice(list(said))
        try:
            said[key] = _dumped(nasty.change(rng, json.loads(said[key])))
        except ValueError:
            said[key] = nasty.text(rng)
    elif kind < 0.85:
        header = nasty.change(rng, header)
    text = _dumped(header).encode(errors="surrogatepass")
    data = struct.pack("<Q", len(text)) + text + tensors
    if kind >= 0.85:
        data = nasty.damage(rng, data[: 16 + len(text)]) + tensors
    path = samples.folder / f"case-{rng.randrange(10**9)}.safetensors"

    def run() -> None:
        path.write_bytes(data)
        try:
            with torch.inference_mode(), expecting(InputError):
                loaded: Any = load(path)
                if load is load_weights:
                    os.fsencode(_description.describe(loaded))
                    _description.origin(loaded)
                    side = min(64, *loaded.input["size"][1:])
                    loaded.model(torch.zeros(1, loaded.input["size"][0], side, side))
        finally:
            path.unlink(missing_ok=True)

    return run


def _dumped(tree: Any) -> str:
    """JSON of trees that are nested more deeply than Python's stack is by default."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(tree)
    finally:
        sys.setrecursionlimit(before)
        sys.set_int_max_str_digits(4300)


def recipe(rng: random.Random, samples: Samples) -> Case:
    """A recipe of the package with other values, as text that YAML may or may not read."""
    name = rng.choice(list(samples.recipes))
    tree = copy.deepcopy(samples.recipes[name])
    for _ in range(rng.choice([1, 1, 2])):
        tree = nasty.change(rng, tree)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    try:
        text = rng.choice([_dumped, lambda tree: yaml.safe_dump(tree, sort_keys=False)])(tree)
    except (ValueError, RecursionError):
        text = nasty.text(rng)
    finally:
        sys.setrecursionlimit(before)
    data = text.encode(errors="surrogatepass")
    if rng.random() < 0.2:
        data = nasty.damage(rng, data)
    path = samples.folder / f"case-{rng.randrange(10**9)}.yaml"
    load = load_detection_recipe if "detector" in samples.recipes[name] else load_recipe

    def run() -> None:
        path.write_bytes(data)
        try:
            with expecting(InputError):
                loaded: Any = load(str(path))
                recipes.as_yaml(loaded).encode()
                if load is load_recipe:
                    with torch.device("meta"):
                        create_model(loaded, tuple("0123456789"))
        finally:
            path.unlink(missing_ok=True)

    return run


def coco_file(rng: random.Random, samples: Samples) -> Case:
    """A COCO file with other entries. What is accepted lies in its images."""
    tree = copy.deepcopy(samples.tree)
    for _ in range(rng.choice([1, 1, 3])):
        section = rng.choice(["annotations", "annotations", "images", "categories"])
        if isinstance(tree, dict) and isinstance(tree.get(section), list) and tree[section]:
            index = rng.randrange(len(tree[section]))
            tree[section][index] = nasty.change(rng, tree[section][index])
        else:
            tree = nasty.change(rng, tree)
    data = _dumped(tree).encode()
    if rng.random() < 0.1:
        data = nasty.damage(rng, data)
    masks = rng.random() < 0.7
    path = samples.coco / "instances_train.json"

    def run() -> None:
        path.write_bytes(data)
        with expecting(InputError):
            found = detection.open_folder(samples.coco, masks=masks)
            for index in range(len(found)):
                image, target = found.read(index)
                _check_target(image, target, len(found.classes))

    return run


def _check_target(image: Image.Image, target: dict[str, Any], classes: int) -> None:
    boxes, labels = target["boxes"], target["labels"]
    inside = (boxes[:, :2] >= 0).all() and (boxes[:, 2] <= image.width).all() and (boxes[:, 3] <= image.height).all()
    if not (boxes.isfinite().all() and inside and (boxes[:, 2:] > boxes[:, :2]).all()):
        raise SilentlyWrong(f"boxes outside of an image of {image.size}: {boxes.tolist()}")
    if not ((labels >= 1) & (labels <= classes)).all():
        raise SilentlyWrong(f"labels {labels.tolist()} of {classes} classes")
    if "masks" in target and tuple(target["masks"].shape) != (len(labels), image.height, image.width):
        raise SilentlyWrong(f"masks of {tuple(target['masks'].shape)} for an image of {image.size}")


def image(rng: random.Random, samples: Samples) -> Case:
    """An image of some format, damaged. What can be read is RGB."""
    data = nasty.damage(rng, rng.choice(samples.pictures))

    def run() -> None:
        with expecting(InputError):
            found = images.read(io.BytesIO(data))
            if found.mode != "RGB" or min(found.size) < 1:
                raise SilentlyWrong(f"{found.mode}, {found.size}")

    return run


class expecting:
    """A block whose errors of these kinds are clear ones."""

    def __init__(self, *kinds: type[Exception]) -> None:
        self.kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, self.kinds):
            raise ClearError(str(error)) from None
