"""Generated recipes, checkpoints, COCO files and images, and the right ones that cases change."""

import copy
import io
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image

from laplacianformer import classification, convert, segmentation, sequences
from laplacianformer import detection as detectors
from laplacianformer._util.errors import InputError
from laplacianformer.classification._model import create_model
from laplacianformer.data import _images as images
from laplacianformer.detection._weights import save_detector
from laplacianformer.model._conversion import Conversion, exchange, softmax_layers
from laplacianformer.sequences._task import create_encoder
from laplacianformer.training import _checkpoint as checkpoint
from laplacianformer.training import _recipes as recipes
from tests.convert import helpers as converting
from tests.detection import helpers as detection
from tests.fuzz import nasty
from tests.fuzz.outcome import ClearError, SilentlyWrong
from tests.helpers import picture, save_small, save_swin
from tests.segmentation import helpers as segmenting
from tests.training import helpers as training

Case = Callable[[], None]
# By the section that only recipes of a task have.
LOADERS: dict[str, Callable[[str], Any]] = {
    "teacher": convert.load_recipe,
    "detector": detectors.load_recipe,
    "encoder": sequences.load_recipe,
    "segmenter": segmentation.load_recipe,
    "model": classification.load_recipe,
}


class Samples:
    """Right inputs, made once, that the cases change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        save_small(folder / "classifier.safetensors", metrics='{"accuracy": 0.5}')
        save_swin(folder / "swin.safetensors")
        save_detector(folder / "detector.safetensors", detection.small("retinanet"), classes=["a", "b", "c"])
        segmentation.save_segmenter(folder / "segmenter.safetensors", segmenting.small(), labels=["a", "b", "c"])
        encoder = sequences.SequenceEncoder(16, 32, 10, dim=16, depth=1, mlp_dim=16, landmarks=4)
        digits = [str(number) for number in range(10)]
        sequences.save_encoder(folder / "encoder.safetensors", encoder, sequence="listops", classes=digits)
        model = converting.teacher()  # with Laplacian attention in one of its two layers
        exchange(model, Conversion("laplacian", {"grid": 2}, tuple(softmax_layers(model))[:1]))
        converting.save_teacher(folder / "converted.safetensors", model)
        self.run = training.tiny(folder, optimise={"epochs": 2})
        classification.train(self.run, folder / "run")
        self.state = checkpoint.load(folder / "run")
        self.coco = detection.coco_folder(folder / "coco", train=2, val=1)
        self.tree = json.loads((self.coco / "instances_train.json").read_text())
        self.recipes = {name: yaml.safe_load(recipes._read(name)) for name in recipes.names()}
        self.picture = folder / "image.png"
        picture(1).save(self.picture)
        self.pictures = [_encoded(form) for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")]


def _encoded(form: str) -> bytes:
    file = io.BytesIO()
    picture(1, (24, 18)).save(file, form)
    return file.getvalue()


@contextmanager
def deep_trees() -> Iterator[None]:
    """A block that writes trees which are nested more deeply than Python's stack is by default."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
        sys.set_int_max_str_digits(4300)


def dumped(tree: Any) -> str:
    with deep_trees():
        return json.dumps(tree)


def recipe(rng: random.Random, samples: Samples) -> Case:
    """A recipe of the package with other values, as text that YAML may or may not read."""
    name = rng.choice(list(samples.recipes))
    tree = copy.deepcopy(samples.recipes[name])
    for _ in range(rng.choice([1, 1, 2])):
        tree = nasty.change(rng, tree)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    try:
        text = rng.choice([dumped, lambda tree: yaml.safe_dump(tree, sort_keys=False)])(tree)
    except (ValueError, RecursionError):
        text = nasty.text(rng)
    finally:
        sys.setrecursionlimit(before)
    if rng.random() < 0.2:
        text = _with_anchors(rng, text)
    data = text.encode(errors="surrogatepass")
    if rng.random() < 0.2:
        data = nasty.damage(rng, data)
    path = samples.folder / f"case-{rng.randrange(10**9)}.yaml"
    section = next(section for section in LOADERS if section in samples.recipes[name])

    def run() -> None:
        path.write_bytes(data)
        try:
            with expecting(InputError):
                loaded = LOADERS[section](str(path))
                recipes.as_yaml(loaded).encode()
                with torch.device("meta"):
                    if section == "model":
                        create_model(loaded, tuple("0123456789"))
                    elif section == "encoder":
                        create_encoder(loaded, tuple("0123456789"))
        finally:
            path.unlink(missing_ok=True)

    return run


def _with_anchors(rng: random.Random, text: str) -> str:
    """The text of a recipe with aliases and merges in one of its values; they may stand for more than memory holds."""
    first = rng.choice(["[x, x]", "{k: 1}", "1" + ":1" * rng.choice([1, 10**5]), "*a", "{<<: *a}", "{<<: {}, k: 2}"])
    values, before = [f"&a {first}"], "a"
    for name in "bcdefghi"[: rng.choice([0, 1, 2, 8])]:
        aliases = ", ".join([f"*{before}"] * rng.choice([1, 2, 9]))
        merges = [f"{{<<: [{aliases}]}}", f"{{<<: *{before}, k: 2}}", f"{{? <<\n : *{before}}}"]
        values.append(f"&{name} " + rng.choice([f"[{aliases}]", *merges]))
        before = name
    start = text.find("{") + 1 if text.startswith("{") else 0
    added = rng.choice(["more", "model", "data"]) + ": [" + ", ".join(values) + "]"
    return f"{text[:start]}{added}{', ' if start else chr(10)}{text[start:]}"


def checkpoint_file(rng: random.Random, samples: Samples) -> Case:
    """A checkpoint with other entries. What is accepted ends the run that it is from."""
    state = dict(samples.state)
    for _ in range(rng.choice([1, 1, 2])):
        state = nasty.change(rng, state)

    def run() -> None:
        folder = samples.folder / f"run-{rng.randrange(10**9)}"
        shutil.copytree(samples.folder / "run", folder)
        try:
            with expecting(InputError):
                with deep_trees():
                    checkpoint.save(folder, state if isinstance(state, dict) else {"state": state})
                classification.train(samples.run, folder, resume=True)
        finally:
            shutil.rmtree(folder)

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
    data = dumped(tree).encode()
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
    """A block whose errors of these kinds are clear ones. shown: what commands do to names in them."""

    def __init__(self, *kinds: type[Exception], shown: Callable[[object], str] = str) -> None:
        self.kinds, self.shown = kinds, shown

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, self.kinds):
            raise ClearError(self.shown(error)) from None
