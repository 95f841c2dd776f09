"""What every experiment has: what the paper claims, how it is run, and a verdict."""

import importlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from laplacianformer.errors import InputError
from laplacianformer.files import write_json
from laplacianformer.provenance import provenance

Verdict = Literal["agrees", "agrees in part", "disagrees", "not confirmed at this scale"]

# Its module is of the same name.
EXPERIMENTS = {
    "solver-convergence": "Newton-Schulz against conjugate gradients, by condition number",
    "gradients": "the gradient of either kernel as two points meet",
    "accuracy-flops": "parameters and multiply-adds of all sizes, beside the reported accuracies",
    "attention": "beyond the paper: the same model with Laplacian, Gaussian and softmax attention",
}


@dataclass(frozen=True)
class Settings:
    """What the user asked for."""

    results: Path  # folder of this experiment
    work: Path  # folder of its trainings
    quick: bool
    cifar10: str | None = None
    processes: int | None = None

    def images(self) -> tuple[str, str | None]:
        """The recipe and data of trainings: digits, which come with a package, or CIFAR-10."""
        if self.quick:
            return "digits", None
        if self.cifar10 is None:
            raise InputError("this experiment trains on CIFAR-10: give --cifar10 DIR (DIR/train/CLASS, DIR/val/CLASS)")
        return "cifar10", self.cifar10


@dataclass(frozen=True)
class Outcome:
    """What was measured, in a sentence or two, and what it says about the claim."""

    measured: str
    verdict: Verdict


class Experiment(Protocol):
    """A module of an experiment."""

    SOURCE: str  # the figure or table of the paper
    CLAIM: str  # what the paper says

    def run(self, settings: Settings) -> Outcome: ...


def find(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise InputError(f"no experiment {name!r}: `laplacianformer reproduce --list` names all")
    module: Experiment = importlib.import_module(f"laplacianformer.experiments.{name.replace('-', '_')}")
    return module


def reproduce(name: str, *, output: Path | None, quick: bool, cifar10: str | None, processes: int | None) -> None:
    """Run one, write its verdict beside its numbers, and print it."""
    experiment = find(name)
    results = (output or Path("runs/quick" if quick else "results")) / name
    work = Path("runs/reproduce") / ("quick" if quick else "full") / name
    settings = Settings(results, work, quick, cifar10, processes)
    outcome = experiment.run(settings)
    write_json(
        settings.results / "verdict.json",
        {
            "name": name,
            "source": experiment.SOURCE,
            "claim": experiment.CLAIM,
            **asdict(outcome),
            "scale": "quick" if quick else "full",
            "command": f"laplacianformer reproduce {name}{' --quick' if quick else ''}",
            **provenance(),
        },
    )
    table = Table.grid(padding=(0, 2))
    for label, text in (("claim", experiment.CLAIM), ("measured", outcome.measured), ("verdict", outcome.verdict)):
        table.add_row(f"[bold]{label}[/]", escape(text))
    Console().print(Panel(table, title=f"{name} ({experiment.SOURCE})", subtitle=str(results), expand=False))


def show_list() -> None:
    table = Table("name", "what it is", title="laplacianformer reproduce NAME", title_justify="left")
    for name, what in EXPERIMENTS.items():
        table.add_row(name, what)
    Console().print(table)
