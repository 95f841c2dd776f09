"""The one training that the sweeps vary, and what they have in common.

All of them share recipes/probe.yaml, the seeds, the controls and the table of trainings: a run that two sweeps ask for,
such as the default one, is trained once. --quick trains on a few handwritten digits, --imagenet at the paper's own
scale.
"""

from collections.abc import Mapping, Sequence

from laplacianformer._util.errors import InputError
from laplacianformer.attention._options import needs_ablation
from laplacianformer.experiments.frame import Settings
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.statistics import PairedDifference, Summary, paired, summary
from laplacianformer.experiments.sweep import ABLATION, Training, sweep

SEEDS = 5
PROBE, PYRAMID = "probe", "ablation"  # recipes: where attention alone mixes tokens, and a small LaplacianFormer
QUICK = (
    *("data.train_samples=144", "data.val_samples=72", "data.workers=0", "optimise.epochs=2"),
    *("optimise.warmup_epochs=0.5", "run.tensorboard=false"),
)
# Overrides of the recipe, by name of the variant. The default run is the recipe as it is.
Variants = Mapping[str, tuple[str, ...]]
DEFAULT: tuple[str, ...] = ()


def other_mixer(name: str, arguments: str = "{}") -> tuple[str, ...]:
    """The recipe with another token mixer, which does not have the arguments of the default one."""
    return f"model.args.attention={name}", f"model.args.attention_args={arguments}"


def with_arguments(**arguments: object) -> tuple[str, ...]:
    """The recipe with some arguments of its attention changed."""
    changed = (f"model.args.attention_args.{name}={value}" for name, value in arguments.items())
    return (*((ABLATION,) if needs_ablation(arguments) else ()), *changed)


# What attention is worth: the accuracy without any, and with the same for all queries.
CONTROLS: Variants = {
    "no mixing": other_mixer("no-mixing"),
    "mean over queries": ("model.args.attention=mean-over-queries",),
}


def runs_of(
    settings: Settings,
    variants: Variants,
    column: str,
    *,
    seeds: int = SEEDS,
    recipe: str = PROBE,
    shared: tuple[str, ...] = (),
    labels: Row | None = None,
) -> list[Training]:
    """Every variant with every seed. Seeds are the outer loop: a sweep that is stopped leaves complete pairs.

    shared: overrides of all variants; labels: columns of all.
    """
    recipe, scaled, data = _scaled(settings, recipe)
    return [
        Training(recipe, {**(labels or {}), column: name}, (*scaled, *shared, *overrides), seed, data)
        for seed in range(1 if settings.quick else settings.seeds or seeds)
        for name, overrides in variants.items()
    ]


def _scaled(settings: Settings, recipe: str) -> tuple[str, tuple[str, ...], str | None]:
    """Recipe, overrides and data at the scale that was asked for."""
    if settings.quick:
        return "digits", (*QUICK, *(("model.name=attention_probe",) if recipe == PROBE else ())), None
    if settings.imagenet is not None:
        return "imagenet", (), settings.imagenet
    if settings.cifar10 is None:
        raise InputError("this experiment trains on CIFAR-10: give --cifar10 DIR (DIR/train/CLASS, DIR/val/CLASS)")
    return recipe, (), settings.cifar10


def train(settings: Settings, runs: Sequence[Training], *, weights: bool = False) -> list[Row]:
    """Train what was not trained yet, and return the rows of these runs in the shared table of trainings."""
    processes = settings.processes or (1 if settings.imagenet else None)  # one training on ImageNet fills a machine
    return sweep(runs, settings.trainings, settings.work, processes, weights=weights, progress=settings.progress)


def accuracies(rows: Sequence[Row], column: str, name: str) -> list[float]:
    """The accuracy of a variant in percent, by seed."""
    found = [row for row in rows if row[column] == name]
    return [100 * float(row["validation_accuracy"]) for row in sorted(found, key=lambda row: int(row["seed"]))]


def compared(rows: Sequence[Row], column: str, baseline: str) -> dict[str, tuple[Summary, PairedDifference]]:
    """For every variant its accuracy, and its difference to the baseline, paired by seed."""
    base = accuracies(rows, column, baseline)
    found = {name: accuracies(rows, column, name) for name in dict.fromkeys(row[column] for row in rows)}
    return {name: (summary(own), paired(own, base)) for name, own in found.items()}
