"""`laplacianformer reproduce`: the figures and tables of the paper."""

import argparse
from dataclasses import fields
from pathlib import Path

from rich.panel import Panel
from rich.table import Table

from laplacianformer._util.errors import InputError
from laplacianformer.commands import options, terminal

SUMMARY = "run a figure or table of the paper"
DESCRIPTION = (
    "Runs one experiment, writes its numbers as CSV and a plot, and says whether they agree with the paper. Training "
    "runs that are finished are not repeated; an interrupted command continues where it was."
)
EPILOG = """examples:
  laplacianformer reproduce --list
  laplacianformer reproduce lambda --quick
  laplacianformer reproduce lambda --cifar10 cifar10/
  laplacianformer reproduce mixers --cifar10 cifar10/
  laplacianformer reproduce lambda --imagenet imagenet/
  laplacianformer reproduce detection --coco coco/
  laplacianformer reproduce trained-distances --imagenet imagenet/ --model vit_tiny_patch16_224
  laplacianformer reproduce long-range --cifar10 cifar10/ --imdb imdb/"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the experiment")
    parser.add_argument("--list", action="store_true", help="list all experiments")
    parser.add_argument(
        "--page",
        action="store_true",
        help="(replaced by docs/reproduction.py in the repository, which writes the page)",
    )
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", action="store_true", help="a minute at most, to see that it runs")
    scale.add_argument("--full", action="store_true", help="sized for a machine with two cores (the default)")
    scale.add_argument("--imagenet", metavar="DIR", help="the paper's own scale: ImageNet, for experiments that train")
    scale.add_argument("--coco", metavar="DIR", help="the paper's own scale: COCO 2017, for detection")
    parser.add_argument("--cifar10", metavar="[READER:]DIR", help="CIFAR-10, for most experiments that train")
    parser.add_argument("--cifar100", metavar="DIR", help="CIFAR-100 as image folders, for cifar100")
    parser.add_argument("--imdb", metavar="DIR", help="IMDb's reviews as text files, for long-range")
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="trained weights, for experiments that inspect them"
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="a model of timm, for trained-distances: with the tensors of --weights, or else those of timm's hub",
    )
    parser.add_argument(
        "--seeds", type=options.processes, metavar="N", help="seeds per variant (default: those of the experiment)"
    )
    parser.add_argument(
        "--processes", type=options.processes, metavar="N", help="training runs at a time (default: one per core)"
    )
    options.add_output(
        parser,
        what="folder of results (default: results/experiments; runs/quick, runs/imagenet or runs/coco at these scales)",
    )


def run(arguments: argparse.Namespace) -> None:
    from laplacianformer.experiments import frame

    if arguments.list:
        terminal.show(_list(frame.EXPERIMENTS))
        return
    if arguments.page:
        raise InputError("--page is gone: in a clone of the repository, `python docs/reproduction.py` writes the page")
    if arguments.name is None:
        raise InputError("name an experiment; --list lists all")
    settings = [field.name for field in fields(frame.Settings) if field.name in arguments]
    with terminal.counter("training runs") as progress:
        experiment, outcome, results = frame.reproduce(
            arguments.name,
            output=arguments.output,
            **{name: getattr(arguments, name) for name in settings},
            progress=progress,
        )
    table = Table.grid(padding=(0, 2))
    for label, text in (("claim", experiment.CLAIM), ("measured", outcome.measured), ("verdict", outcome.verdict)):
        table.add_row(f"[bold]{label}[/]", terminal.plain(text))
    title = f"{arguments.name} ({experiment.SOURCE})"
    terminal.show(Panel(table, title=title, subtitle=terminal.plain(results), expand=False))


def _list(experiments: dict[str, str]) -> Table:
    table = Table("name", "what it is", title="laplacianformer reproduce NAME", title_justify="left")
    for name, what in experiments.items():
        table.add_row(name, what)
    return table
