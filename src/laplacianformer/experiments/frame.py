"""What every experiment has: what the paper claims, how it is run, and a verdict."""

import importlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import write_json
from laplacianformer._util.provenance import provenance

Verdict = Literal["agrees", "agrees in part", "disagrees", "not confirmed at this scale"]

# Its module is of the same name.
EXPERIMENTS = {
    "qk-distances": "Figure 1: how far queries and keys lie apart in DeiT, PVT and Swin, and how heavy the tails are",
    "attention": "beyond the paper: the same model with Laplacian, Gaussian and softmax attention",
    "kernel-convergence": "Figure 2a: SOFT++, Skyformer and LaplacianFormer with either kernel as training goes on",
    "attention-maps": "Figure 2b: maps of the first block and their singular values, by kernel and by lambda",
    "accuracy-flops": "Figure 3a and Table 1: parameters and multiply-adds, beside the reported accuracies",
    "memory": "Figure 3b: peak memory and time of an attention layer by number of tokens",
    "kernel-time": "the time of the kernels by size, against PyTorch",
    "kernel-accuracy": "appendix: the error of the kernels against float64",
    "solver-convergence": "Newton-Schulz against conjugate gradients, by condition number",
    "detection": "Table 2: the detection recipes, beside the reported precision",
    "solver-accuracy": "Table 3: the model trained with Newton-Schulz, conjugate gradients and a ridge",
    "lambda": "Table 3: the model trained with each scale of the kernel",
    "whitening": "beyond the paper: no whitening, diagonal and full",
    "kernels": "the paper's future work: cosine, polynomial and Matern kernels",
    "injectivity": "appendix: whether different queries get different weights",
    "gradients": "appendix: the gradient of either kernel as two points meet",
}


@dataclass(frozen=True)
class Settings:
    """What the user asked for."""

    results: Path  # folder of this experiment
    trainings: Path  # folder of the table of trainings, which all experiments share
    work: Path  # folder of the trainings themselves
    quick: bool
    cifar10: str | None = None
    imagenet: str | None = None
    coco: str | None = None
    weights: Path | None = None
    processes: int | None = None


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


def reproduce(name: str, *, output: Path | None, quick: bool, **given: Any) -> tuple[Experiment, Outcome, Path]:
    """Run one and write its verdict beside its numbers, in the returned folder. `given`: the rest of `Settings`."""
    experiment = find(name)
    scale = "quick" if quick else "imagenet" if given["imagenet"] else "coco" if given["coco"] else "full"
    output = output or Path("results" if scale == "full" else f"runs/{scale}")
    results, work = output / name, Path("runs/reproduce") / scale
    settings = Settings(results, output / "trainings", work, quick, **given)
    outcome = experiment.run(settings)
    options = {"quick": " --quick", "imagenet": " --imagenet DIR", "coco": " --coco DIR", "full": ""}
    write_json(
        results / "verdict.json",
        {
            "name": name,
            "source": experiment.SOURCE,
            "claim": experiment.CLAIM,
            **asdict(outcome),
            "scale": scale,
            "command": f"laplacianformer reproduce {name}{options[scale]}",
            **provenance(),
        },
    )
    return experiment, outcome, results
