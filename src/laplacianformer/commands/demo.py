"""`laplacianformer demo`: a web page on this computer, until it is interrupted."""

import argparse
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from laplacianformer._util.errors import InputError
from laplacianformer.commands import options, terminal

if TYPE_CHECKING:
    from laplacianformer.demo.explorer import Explorer
    from laplacianformer.demo.painter import Painter

SUMMARY = "a local web page: classes and attention of your images"
DESCRIPTION = (
    "Serves a page on this computer alone: upload an image to see its classes, click on it to see what that token "
    "attends to in any layer and head, with another lambda, and with the Gaussian kernel and softmax for comparison. "
    "With weights of a segmenter, it shows the class of every pixel. It needs no network, and leaves no files."
)
EPILOG = """examples:
  laplacianformer demo
  laplacianformer demo --weights runs/cifar10/model.safetensors --port 8000
  laplacianformer demo --weights runs/camvid/model.safetensors

It needs gradio: pip install 'laplacianformer[page]'. Ctrl+C ends it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_weights(parser)
    parser.add_argument(
        "--port", type=options.port, metavar="N", help="port of the page (default: the first free one from 7860)"
    )


def run(arguments: argparse.Namespace) -> None:
    missing = [name for name in ("gradio", "matplotlib") if find_spec(name) is None]
    if missing:
        raise InputError(f"the page needs {' and '.join(missing)}: pip install 'laplacianformer[page]'")

    from laplacianformer.demo.server import check_port, serve

    if arguments.port is not None:
        check_port(arguments.port)  # before anything is loaded
    explorer = _explorer(arguments)
    _end_as_by_interrupt()
    with suppress(KeyboardInterrupt), serve(explorer, arguments.port) as address:
        terminal.note(f"The page is at {address} (Ctrl+C ends it)")
        threading.Event().wait()


def _explorer(arguments: argparse.Namespace) -> "Explorer | Painter":
    """What the page shows, after a first image: weights that can't be used fail here, not on the page."""
    tasks: dict[str, Callable[..., Explorer | Painter]]
    tasks = {"classification": _of_classifier, "segmentation": _of_segmenter}
    _, explorer = options.for_task(arguments.weights, tasks)
    return explorer(arguments.weights)


def _of_classifier(path: Path | None) -> "Explorer":
    from laplacianformer.demo.explorer import Explorer

    explorer = Explorer(options.load_classifier(path))
    explorer.analyse_example(explorer.examples[0])
    return explorer


def _of_segmenter(path: Path) -> "Painter":
    from laplacianformer.demo.painter import Painter
    from laplacianformer.segmentation import load_segmenter

    painter = Painter(load_segmenter(path))
    painter.paint_example(painter.examples[0])
    return painter


def _end_as_by_interrupt() -> None:
    """Let the signals of a service manager and of a terminal that is closed end the command as Ctrl+C does.

    The folder is removed then, too. What was told to ignore them, with nohup for example, still does.
    """
    for number in _signals():
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    """Raise once: a terminal that is closed sends its signal more than once, and the second would end the clean-up."""
    for each in _signals():
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _signals() -> list[signal.Signals]:
    """Those that end the page. Windows has no SIGHUP."""
    return [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
