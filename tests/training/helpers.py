"""A tiny model, a tiny folder of images, and recipes on them: seconds on one core."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image
from safetensors.torch import load_file

from laplacianformer.classification import Recipe, load_recipe

MODEL = {"depths": [1, 1], "embed_dims": [32, 32], "num_heads": [1, 1], "mlp_ratios": [1, 1], "stem_stride": 4}
ATTENTION = {"grid": 3}


def image_folder(root: Path, classes: int = 3, train: int = 8, val: int = 4, size: int = 16) -> Path:
    """root/{train,val}/CLASS/N.png: noise around one colour per class."""
    chance = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for label in range(classes):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = chance.normal(60 + 60 * label, 40, (size, size, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def write_recipe(path: Path, images: Path, **sections: dict[str, Any]) -> Path:
    """A recipe file: 4 epochs of 4 steps of 6 images, with every random choice that a recipe can have."""
    recipe: dict[str, dict[str, Any]] = {
        "model": {
            "name": "laplacianformer_nano",
            "args": {**MODEL, "attention_args": ATTENTION, "drop_path_rate": 0.2},
        },
        "data": {"root": str(images), "size": 16, "crop_pct": 1.0, "cache": True, "workers": 0},
        "augment": {"flip": 0.5, "crop_padding": 2, "label_smoothing": 0.1, "mixup": 0.5},
        "optimise": {"epochs": 4, "batch_size": 6, "lr": 2e-3, "warmup_epochs": 1, "ema_decay": 0.9},
        "run": {"accelerator": "cpu", "devices": 1, "log_steps": 3, "checkpoint_steps": 3, "tensorboard": False},
    }
    for name, keys in sections.items():
        recipe[name] |= keys
    path.write_text(yaml.safe_dump(recipe))
    return path


def tiny(folder: Path, **sections: dict[str, Any]) -> Recipe:
    images = folder / "data"
    if not images.exists():
        image_folder(images)
    return load_recipe(str(write_recipe(folder / "recipe.yaml", images, **sections)))


@contextmanager
def python(arguments: Sequence[str], **environment: str) -> "Iterator[subprocess.Popen[str]]":
    """A separate process; it and its children end with the block."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


# What a child prints goes where errors go; the output tells how each ended.
SERVER = """
import json, os, sys, traceback
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        try:
            run(*json.loads(line))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@contextmanager
def forking(code: str, **environment: str) -> Iterator[Callable[..., int]]:
    """Calls `run` of the code with texts, each time in another child of one process: importing takes longer than most
    calls. Returns how the child ended, in the numbers of subprocess."""
    process = subprocess.Popen(
        [sys.executable, "-c", code + SERVER],
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def call(*arguments: object) -> int:
        print(json.dumps([str(argument) for argument in arguments]), file=process.stdin, flush=True)
        return int(process.stdout.readline())

    try:
        yield call
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without the columns that measure time."""
    with (folder / "metrics.csv").open(newline="") as file:
        clock = ("images_per_second", "data_wait")
        return [{key: row[key] for key in row if key not in clock} for row in csv.DictReader(file)]


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")
