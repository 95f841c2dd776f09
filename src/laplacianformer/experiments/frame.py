"""The frame of every experiment: what the paper claims, how the experiment is run, and the verdict."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import write_json
from laplacianformer._util.provenance import provenance

Verdict = Literal[
    "agrees", "agrees in part", "disagrees", "not confirmed at this scale", "attention does not matter here"
]

EXPERIMENTS = {
    "qk-distances": "Figure 1: distances between queries and keys in DeiT, PVT and Swin, and how heavy their tails are",
    "trained-distances": "Figure 1 again, in a model that was trained elsewhere (--weights or --model), with intervals",
    "attention": "beyond the paper: the same model with Laplacian, Gaussian and softmax attention",
    "kernel-convergence": "Figure 2a: SOFT++, Skyformer and LaplacianFormer with each kernel, over the epochs",
    "attention-maps": "Figure 2b: attention maps of the first block and their singular values, by kernel and by lambda",
    "accuracy-flops": "Figure 3a and Table 1: parameters and multiply-adds, beside the reported accuracies",
    "memory": "Figure 3b: peak memory and time of an attention layer by number of tokens",
    "op-time": "run time of the Laplacian kernel and of Newton-Schulz by size, against PyTorch",
    "op-accuracy": "appendix: the error of every backend of the ops against float64",
    "solver-convergence": "Newton-Schulz against conjugate gradients, by condition number",
    "detection": "Table 2: the detection recipes, beside the reported precision",
    "solver-accuracy": "Table 3: the model trained with Newton-Schulz, conjugate gradients and a ridge solve",
    "lambda": "Table 3: the model trained with different scales of the kernel",
    "whitening": "beyond the paper: no whitening, diagonal and full whitening",
    "other-kernels": "the paper's future work: cosine, polynomial and Matern kernels",
    "injectivity": "appendix: whether different queries get different attention weights",
    "gradients": "appendix: the gradient of both kernels as two points approach each other",
    "gain": "where the paper is silent: the gain of the whitened part",
    "gain-in-depth": "where the paper is silent: the gain in pyramids, one of them deep",
    "magnitudes": "beyond the paper: three ways to keep magnitudes where the kernel is small",
    "defaults": "where the paper is silent: Gram matrix and number of steps of the default layer",
    "mixers": "beyond the paper: every token mixer on all of CIFAR-10",
    "cifar100": "a public counter-claim: Laplacian, softmax and spatial-reduction attention on CIFAR-100",
    "recall": "beyond the paper: what landmarks miss where all tokens differ from their neighbours",
    "long-range": "beyond the paper: token mixers on four tasks of Long Range Arena, and against time",
}

# What experiments were called before, when "kernel" meant both the function and the code that computes it.
RENAMED = {"kernel-time": "op-time", "kernel-accuracy": "op-accuracy", "kernels": "other-kernels"}

Progress = Callable[[int, int], None]  # called with the number of finished trainings and of all trainings


def silent(finished: int, total: int) -> None:
    """Show no progress."""


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
    imdb: str | None = None
    cifar100: str | None = None
    weights: Path | None = None
    model: str | None = None  # of timm
    processes: int | None = None
    seeds: int | None = None  # per variant, instead of the number of the experiment
    progress: Progress = silent


@dataclass(frozen=True)
class Outcome:
    """What was measured, in a sentence or two, and what it says about the claim."""

    measured: str
    verdict: Verdict


class Experiment(Protocol):
    """A module of this package that is an experiment."""

    SOURCE: str  # the figure or table of the paper
    CLAIM: str  # what the paper says

    def run(self, settings: Settings) -> Outcome: ...


class Reproduced(NamedTuple):
    """An experiment that was run."""

    experiment: Experiment
    outcome: Outcome
    results: Path  # the folder it has written


# Only the module that is asked for is imported, because some need packages
# that others don't, and mypy checks each one against the protocol.
def find(name: str) -> Experiment:  # long: a table in the form of a function
    """The module of an experiment."""
    match name:
        case "qk-distances":
            from laplacianformer.experiments import qk_distances

            return qk_distances
        case "trained-distances":
            from laplacianformer.experiments import trained_distances

            return trained_distances
        case "attention":
            from laplacianformer.experiments import attention

            return attention
        case "kernel-convergence":
            from laplacianformer.experiments import kernel_convergence

            return kernel_convergence
        case "attention-maps":
            from laplacianformer.experiments import attention_maps

            return attention_maps
        case "accuracy-flops":
            from laplacianformer.experiments import accuracy_flops

            return accuracy_flops
        case "memory":
            from laplacianformer.experiments import memory

            return memory
        case "op-time":
            from laplacianformer.experiments import op_time

            return op_time
        case "op-accuracy":
            from laplacianformer.experiments import op_accuracy

            return op_accuracy
        case "solver-convergence":
            from laplacianformer.experiments import solver_convergence

            return solver_convergence
        case "detection":
            from laplacianformer.experiments import detection

            return detection
        case "solver-accuracy":
            from laplacianformer.experiments import solver_accuracy

            return solver_accuracy
        case "lambda":
            from laplacianformer.experiments import scale

            return scale
        case "whitening":
            from laplacianformer.experiments import whitening

            return whitening
        case "other-kernels":
            from laplacianformer.experiments import other_kernels

            return other_kernels
        case "injectivity":
            from laplacianformer.experiments import injectivity

            return injectivity
        case "gradients":
            from laplacianformer.experiments import gradients

            return gradients
        case "gain":
            from laplacianformer.experiments import gain

            return gain
        case "recall":
            from laplacianformer.experiments import recall

            return recall
        case "gain-in-depth":
            from laplacianformer.experiments import gain_in_depth

            return gain_in_depth
        case "mixers":
            from laplacianformer.experiments import mixers

            return mixers
        case "cifar100":
            from laplacianformer.experiments import cifar100

            return cifar100
        case "magnitudes":
            from laplacianformer.experiments import magnitudes

            return magnitudes
        case "defaults":
            from laplacianformer.experiments import defaults

            return defaults
        case "long-range":
            from laplacianformer.experiments import long_range

            return long_range
        case _ if name in RENAMED:
            raise InputError(f"{name} is called {RENAMED[name]} now: `laplacianformer reproduce {RENAMED[name]}`")
        case _:
            raise InputError(f"no experiment {name!r}: `laplacianformer reproduce --list` names all")


def reproduce(name: str, *, output: Path | None, quick: bool, **given: Any) -> Reproduced:
    """Run an experiment and write its verdict beside its numbers. `given`: the other fields of `Settings`."""
    experiment = find(name)
    scale = "quick" if quick else next((key for key in ("imagenet", "coco") if given.get(key)), "full")
    output = output or Path("results/experiments" if scale == "full" else f"runs/{scale}")
    results, work = output / name, Path("runs/reproduce") / scale
    outcome = experiment.run(Settings(results, output / "trainings", work, quick, **given))
    options = {"quick": " --quick", "imagenet": " --imagenet DIR", "coco": " --coco DIR", "full": ""}
    model = f" --model {given['model']}" if given.get("model") else ""
    weights = " --weights FILE" if given.get("weights") else ""
    seeds = f" --seeds {given['seeds']}" if given.get("seeds") else ""
    write_json(
        results / "verdict.json",
        {
            "name": name,
            "source": experiment.SOURCE,
            "claim": experiment.CLAIM,
            **asdict(outcome),
            "scale": scale,
            "command": f"laplacianformer reproduce {name}{options[scale]}{model}{weights}{seeds}",
            **provenance(),
        },
    )
    return Reproduced(experiment, outcome, results)
