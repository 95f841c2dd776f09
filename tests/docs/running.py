"""Runs the blocks of a page from top to bottom, in a folder that holds the files its commands name."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from laplacianformer import cli, save_weights
from tests.docs.helpers import Block, arguments_of, blocks, lines
from tests.helpers import INPUT, picture, small_model
from tests.model.helpers import ONE_STAGE
from tests.sequences.helpers import text_folder
from tests.training.helpers import image_folder, write_recipe

# What begins with these words is not run, and why.
NOT_RUN = {
    "pip install": "changes the environment",
    "make": "lint, tests, site, wheels and demo: each is tested by itself, or is the tests",
    "git worktree": "changes the repository",
    "python benchmarks/": "measures for minutes; tests/benchmarks runs each for a moment",
    "python docs/reproduction.py": "writes to the repository; tests/experiments/test_reproduction_page.py runs it",
    "'CFLAGS=": "builds with a sanitizer",
    "LDFLAGS=": "builds with a sanitizer",
    "LAPLACIANFORMER_FUZZ=20000": "the tests themselves, for longer",
    "python -m pytest": "the tests themselves",
    "pytest tests/": "the tests themselves",
    "apt-get": "changes the machine",
    "c++": "tests/ops/test_baseline.py builds and runs it",
    "./baseline": "tests/ops/test_baseline.py builds and runs it",
    "pytest -m gpu": "needs a GPU",
    "LAPLACIANFORMER_FUZZ=5000": "the tests themselves, for longer",
    "export": "sets variables for the programs that are started afterwards",
    "auditwheel": "comes from outside of the development environment",
    "torchrun": "needs several GPUs",
    "srun": "needs a cluster",
    "laplacianformer info": "counts for ten seconds; tests/commands/test_info.py runs it for fewer sizes",
    "laplacianformer demo": "serves until it is interrupted; tests/demo runs it",
    "laplacianformer train --recipe imagenet": "needs ImageNet",
    "laplacianformer eval --weights model.safetensors --data 'wds/imagenet:pipe:": "needs the network",
    "laplacianformer train --recipe coco": "needs COCO",
    "laplacianformer train --recipe camvid": "needs CamVid",
    "laplacianformer train --recipe ade20k-fpn": "needs ADE20K",
    "laplacianformer export --weights runs/shapes-segmentation": "half a minute; see export/test_segmenter.py",
    "laplacianformer export --weights runs/shapes-maskrcnn": "minutes; see export/test_detector.py",
    "python examples/detect_onnx.py": "needs the file of laplacianformer export",
    "laplacianformer convert vit_tiny_patch16_224": "needs weights of timm's hub; see convert/test_run.py",
    "laplacianformer eval --weights vit.safetensors": "needs the file of laplacianformer convert",
    "laplacianformer predict --weights vit.safetensors": "needs the file of laplacianformer convert",
    "laplacianformer diagnose --weights vit.safetensors": "needs the file of laplacianformer convert",
    "laplacianformer export --weights vit.safetensors": "needs the file of laplacianformer convert",
    "laplacianformer export --weights model.safetensors --format pt2": "compiles for a minute; see export/test_pt2.py",
    "laplacianformer export --weights model.safetensors --format onnx --precision": "slow; see export/test_onnx.py",
    "laplacianformer export --weights runs/mine/model.safetensors": "docs/deploy.md exports a smaller model",
    "laplacianformer reproduce lambda": "trains; tests/experiments/test_trainings.py runs every experiment that does",
    "laplacianformer reproduce attention": "trains for an hour",
    "laplacianformer reproduce gain": "trains for an hour",
    "laplacianformer reproduce recall": "trains for ten minutes",
    "laplacianformer reproduce magnitudes": "trains for an hour",
    "laplacianformer reproduce mixers": "trains for hours",
    "laplacianformer reproduce cifar100": "trains for hours",
    "laplacianformer reproduce long-range": "trains for hours; tests/experiments runs its quick form",
    'import json import torch model = torch._inductor.aoti_load_package("model.pt2")': "needs the file of --format pt2",
    "import torch from laplacianformer import assets": "writes the weights inside the package",
}
SMALL_TRAINING = (
    *("optimise.epochs=1", "optimise.warmup_epochs=0", "optimise.batch_size=8", "data.train_samples=16"),
    *("data.val_samples=8", "data.workers=0", "run.accelerator=cpu", "run.devices=1", "run.tensorboard=false"),
)
# What is added to commands that begin with these words, to make them quick.
QUICKER = {
    "eval": ("--workers", "0"),
    "train --recipe digits": SMALL_TRAINING,
    "train --recipe cifar10": SMALL_TRAINING,
    "train --recipe finetune": SMALL_TRAINING,
    "train --recipe mine.yaml": SMALL_TRAINING,
    "train --recipe lra-": (*SMALL_TRAINING, "data.length=200", "data.shortest=50", "encoder.landmarks=8"),
    "train --recipe probe-inpaint": (*SMALL_TRAINING, "data.length=64", "encoder.landmarks=9"),
    "train --recipe shapes-segmentation": (
        *("data.shapes_train=4", "data.shapes_val=2", "data.shapes_size=48", "data.crop=[48, 48]", "optimise.epochs=1"),
        *("optimise.warmup_epochs=0", "optimise.batch_size=4", "run.devices=1", "run.tensorboard=false"),
    ),
    "train --recipe shapes-maskrcnn": (
        *("data.shapes_train=4", "data.shapes_val=2", "data.shapes_size=48", "data.short_side=[48]"),
        *("data.long_side=64", "optimise.epochs=1", "optimise.batch_size=4", "run.devices=1", "run.tensorboard=false"),
    ),
}


def reason(words: str) -> str | None:
    """Why a command line or a block of Python, as words with single spaces, is not run."""
    return next((why for start, why in NOT_RUN.items() if f"{words} ".startswith(start)), None)


def words_of(block: Block) -> list[str]:
    """What is run or not run: the lines of a shell block, or a block of Python."""
    if block.language == "bash":
        return [shlex.join(line) for line in lines(block)]
    return [" ".join(block.code.split())]


def fill(folder: Path, model: nn.Module) -> None:
    """The files that the pages name: images, data sets and weights, all small."""
    for data in ("DIR", "cifar10"):
        image_folder(folder / data, classes=2, train=32, val=4, size=32)
    for number, path in enumerate(["photo.png", "images/1.png", "images/2.jpg", "holiday/3.png", "scans/a/b/4.tif"]):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        picture(number, (40, 32)).save(folder / path)
    text_folder(folder / "imdb")
    (folder / "review.txt").write_text("Not my film.")
    for path in ("model.safetensors", "runs/digits/model.safetensors"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        save_weights(folder / path, model, classes=("class0", "class1"), metadata={"input": json.dumps(INPUT)})
    write_recipe(folder / "mine.yaml", folder / "DIR")


def run(page: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """Run a page in a folder; the namespace that its Python leaves behind."""
    fill(folder, small_model(2, **(ONE_STAGE if page.name == "deploy.md" else {})))  # which exports it
    monkeypatch.chdir(folder)
    namespace: dict[str, Any] = {}
    for block in blocks(page, "python", "bash"):
        if block.language == "python" and not reason(words_of(block)[0]):
            exec(compile(block.code, page.name, "exec"), namespace)
        elif block.language == "bash":
            for line in lines(block):
                if not reason(shlex.join(line)):
                    assert line[0] == "laplacianformer", f"{page.name}: say why in NOT_RUN: {shlex.join(line)}"
                    command(arguments_of(line))
    return namespace


def command(arguments: list[str]) -> None:
    """Run a command of the package in this process. No page may reach the network, or start other programs."""
    assert "pipe:" not in shlex.join(arguments), "say in NOT_RUN that it starts other programs"
    added = next((more for start, more in QUICKER.items() if shlex.join(arguments).startswith(start)), ())
    try:
        cli.main([*arguments, *added])
    except SystemExit as stop:
        raise AssertionError(f"laplacianformer {shlex.join(arguments)} ends with exit code {stop.code}") from None
