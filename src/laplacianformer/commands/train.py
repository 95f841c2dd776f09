"""`laplacianformer train`: from a recipe to a run."""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from laplacianformer._util.errors import InputError
from laplacianformer.commands import options

SUMMARY = "train a classifier, a detector, a segmenter or a sequence encoder from a recipe"
DESCRIPTION = (
    "Trains as a recipe says: one of the package, or a .yaml file. Under torchrun or SLURM, the same command starts "
    "every process. An interrupted run continues with --resume."
)
EPILOG = """examples:
  laplacianformer train --recipe digits
  laplacianformer train --recipe cifar10 optimise.epochs=5 --data cifar10/ --output runs/cifar10
  laplacianformer train --recipe cifar10 --data cifar10/ --output runs/cifar10 --resume
  laplacianformer train --recipe finetune --data DIR --weights laplacianformer_nano
  laplacianformer train --recipe finetune --data DIR --weights model.safetensors data.size=64 model.frozen_stages=2
  laplacianformer train --recipe shapes-maskrcnn
  laplacianformer train --recipe shapes-segmentation
  laplacianformer train --recipe camvid --data camvid/
  laplacianformer train --recipe lra-listops encoder.attention=softmax 'encoder.attention_args={}'
  laplacianformer train --recipe lra-text --data imdb/
  torchrun --nproc-per-node 8 -m laplacianformer train --recipe imagenet --data imagenet/"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", required=True, metavar="NAME|FILE", help="a recipe of the package, or a .yaml file")
    parser.add_argument(
        "--data",
        metavar="[READER:]DIR",
        help="where the images or texts are, for example DIR, idx:DIR or torch/cifar10:DIR "
        "(default: as the recipe says)",
    )
    options.add_allow_pipes(parser)
    parser.add_argument(
        "--weights",
        metavar="FILE|NAME",
        help="what to start from: a weights file (.safetensors), or a model of timm, whose weights are downloaded; "
        "laplacianformer_nano is in the package (default: as the recipe says)",
    )
    options.add_output(parser, what="folder of the run (default: runs/NAME)")
    parser.add_argument(
        "--resume", action="store_true", help="continue from the checkpoint in --output, if there is one"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="section.key=value",
        help="changes to the recipe, for example optimise.epochs=10",
    )
    options.collect_rest(parser, "overrides")


def run(arguments: argparse.Namespace) -> None:
    if arguments.allow_pipes:
        check_pipes(arguments.data)
    from laplacianformer.commands.progress import ProgressReport

    try:
        from laplacianformer.training import _recipes as recipes

        tasks = _tasks()
    except ImportError as error:
        raise InputError(f"training needs {error.name}: pip install 'laplacianformer[train]'") from None
    kinds = {section: kind for section, (kind, _) in tasks.items()}
    overrides = [*data_overrides(arguments.data), *weights_overrides(arguments.weights), *arguments.overrides]
    loaded = recipes.load(arguments.recipe, kinds, overrides)
    train = next(train for kind, train in tasks.values() if isinstance(loaded, kind))
    folder = arguments.output or Path("runs") / Path(arguments.recipe).stem
    if arguments.allow_pipes and "model" not in vars(loaded):
        raise InputError("--allow-pipes is for classifiers of images: nothing else is trained on WebDataset shards")
    more = {"allow_pipes": True} if arguments.allow_pipes else {}
    train(loaded, folder, resume=arguments.resume, report=ProgressReport(), **more)


def check_pipes(data: str | None) -> None:
    """Refuse to run a command from a recipe, which others may have written: --data has to give it."""
    from laplacianformer.data._sources import parse

    if data is None or parse(data)[1] is None:
        raise InputError("--allow-pipes is for what --data gives: --data wds/NAME:'pipe:COMMAND'")


def _tasks() -> dict[str, tuple[type[Any], Callable[..., Any]]]:
    """Every task by the section that only its recipes have: the type of its recipes, and what trains one."""
    from laplacianformer import classification, convert, detection, segmentation, sequences

    return {
        "teacher": (convert.ConvertRecipe, convert.train),
        "model": (classification.Recipe, classification.train),
        "detector": (detection.DetectionRecipe, detection.train),
        "segmenter": (segmentation.SegmentationRecipe, segmentation.train),
        "encoder": (sequences.SequenceRecipe, sequences.train),
    }


def data_overrides(data: str | None) -> list[str]:
    """`--data [READER:]DIR` as overrides of a recipe."""
    from laplacianformer.data._sources import parse

    reader, root = parse(data) if data is not None else (None, None)
    said = {"data.reader": reader, "data.root": root}
    return [text_override(key, value) for key, value in said.items() if value is not None]


def weights_overrides(weights: str | None) -> list[str]:
    """`--weights FILE|NAME` as overrides of a recipe."""
    return [] if weights is None else [text_override("model.weights", weights)]


def text_override(key: str, text: str) -> str:
    """An override whose value is text: in quotes, with escapes for what YAML does not take as it is: also bytes of a
    name that are not UTF-8."""
    quoted = json.dumps(text, ensure_ascii=False)
    escaped = re.sub("[\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", quoted)
    return f"{key}={escaped}"
