"""Options that several commands have, and how the values of options are read."""

import argparse
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from laplacianformer._util.limits import MOST_OPTION, MOST_PROCESSES, MOST_SIDE, shown
from laplacianformer.commands.terminal import note

if TYPE_CHECKING:
    from laplacianformer.weights import Weights

Function = TypeVar("Function", bound=Callable[..., Any])


def add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="weights of a classifier; export also takes those of a segmenter or a detector, demo of a segmenter, "
        "predict of a sequence encoder (.safetensors; default: those in the package, trained on CIFAR-10)",
    )


def for_task(path: Path | None, functions: Mapping[str, Function]) -> tuple[str, Function]:
    """The task of what --weights names, and the function for it. `functions` has one for "classification", which also
    gets the weights of every task that is not named: reading them as a classifier says which commands take them."""
    from laplacianformer.weights import stated_task

    task = stated_task(path)
    return task, functions.get(task, functions["classification"])


def load_classifier(path: Path | None) -> "Weights":
    """What --weights names; without it the weights in the package, and a line on stderr that says what they are."""
    from laplacianformer.weights._description import origin
    from laplacianformer.weights._file import load_chosen

    loaded = load_chosen(path)
    if path is None:
        note(origin(loaded))
    return loaded


def add_output(
    parser: argparse.ArgumentParser,
    default: Path | None = None,
    what: str = "folder to write to (default: %(default)s)",
) -> None:
    """The folder that a command writes to."""
    parser.add_argument("--output", type=Path, default=default, metavar="DIR", help=what)


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: an accelerator if there is one, or the CPU)"
    )


def add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="numbers in linear layers and convolutions; bfloat16 takes about 0.8 of the time on CPUs that have "
        "instructions for it (avx512_bf16 or amx_bf16 among the flags of lscpu), and longer on others "
        "(default: %(default)s)",
    )


def computing(arguments: argparse.Namespace) -> AbstractContextManager[Any]:
    """A block in which models compute as --precision says, on the device of --device."""
    if arguments.precision == "float32":
        return nullcontext()
    from laplacianformer._util.devices import chosen_device
    from laplacianformer._util.precision import computing_in

    return computing_in(arguments.precision, chosen_device(arguments.device))


def add_allow_pipes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-pipes",
        action="store_true",
        help="let --data run a shell command that writes shards, as in wds/NAME:'pipe:ssh host cat shards/'",
    )


def add_images(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="files, folders (with their subfolders) or patterns")
    collect_rest(parser, "images")


def add_window(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--window",
        type=window,
        metavar="PIXELS",
        help="for segmenters: look at images in square windows of this side, which takes less memory; 0: at the whole "
        "image (default: as the weights say)",
    )


def collect_rest(parser: argparse.ArgumentParser, name: str) -> None:
    """Let positional arguments also follow an option, which argparse alone rejects: they are added to this list."""
    parser.set_defaults(rest=name)


# ---- types of values ----


def positive(text: str) -> int:
    return _whole(text, MOST_OPTION)


def processes(text: str) -> int:
    return _whole(text, MOST_PROCESSES)


def workers(text: str) -> int:
    return 0 if text == "0" else processes(text)


def side(text: str) -> int:
    """Of an image, in pixels."""
    return _whole(text, MOST_SIDE)


def window(text: str) -> int:
    """A side, or 0 for none."""
    return 0 if text == "0" else side(text)


def _whole(text: str, most: int) -> int:
    # As long as `most` at most: Python refuses to read integers of thousands of digits.
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {most}, got {shown(text)}")
    return int(text)


def port(text: str) -> int:
    return _whole(text, 65535)


def fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return value


def point(text: str) -> tuple[float, float]:
    """X,Y in an image, each from 0 to 1."""
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected X,Y, for example 0.3,0.5, got {text!r}") from None
    if not (0 <= x <= 1 and 0 <= y <= 1):
        raise argparse.ArgumentTypeError(f"expected X and Y from 0 to 1, got {text!r}")
    return x, y
