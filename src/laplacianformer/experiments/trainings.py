"""The one training that the sweeps vary, and what they have in common.

All of them share recipes/ablation.yaml, seeds and table: a run that two sweeps ask for, as the default one, is trained
once. --quick takes a few handwritten digits, --imagenet the recipe of the paper's own size.
"""

from collections.abc import Mapping, Sequence

from laplacianformer._util.errors import InputError
from laplacianformer.experiments.frame import Settings
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.experiments.statistics import Difference, Summary, paired, summary
from laplacianformer.experiments.sweep import Run, curves, sweep

SEEDS = 3
QUICK = (
    *("data.train_samples=144", "data.val_samples=72", "data.workers=0", "optimise.epochs=2"),
    *("optimise.warmup_epochs=0.5", "run.tensorboard=false"),
)
# Of a variant: what is put over the recipe. The default run is the recipe as it is.
Variants = Mapping[str, tuple[str, ...]]
DEFAULT: tuple[str, ...] = ()


def other_mixer(name: str, arguments: str = "{}") -> tuple[str, ...]:
    """The recipe with another token mixer, which does not know the arguments of the default one."""
    return f"model.args.attention={name}", f"model.args.attention_args={arguments}"


def one_argument(name: str, value: object) -> tuple[str, ...]:
    """The recipe with one argument of its attention changed."""
    return (f"model.args.attention_args.{name}={value}",)


def runs_of(settings: Settings, variants: Variants, column: str, seeds: int = SEEDS) -> list[Run]:
    """Every variant with every seed; seeds first, so that a sweep that is stopped has whole pairs."""
    recipe, shared, data = _images(settings)
    return [
        Run(recipe, {column: name}, (*shared, *overrides), seed, data)
        for seed in range(1 if settings.quick else seeds)
        for name, overrides in variants.items()
    ]


def _images(settings: Settings) -> tuple[str, tuple[str, ...], str | None]:
    """Recipe, overrides and data."""
    if settings.quick:
        return "digits", QUICK, None
    if settings.imagenet is not None:
        return "imagenet", (), settings.imagenet
    if settings.cifar10 is None:
        raise InputError("this experiment trains on CIFAR-10: give --cifar10 DIR (DIR/train/CLASS, DIR/val/CLASS)")
    return "ablation", (), settings.cifar10


def train(settings: Settings, runs: Sequence[Run], *, weights: bool = False) -> list[Row]:
    """Train what was not trained yet; rows and curves of these runs go to the folder of the experiment too."""
    processes = settings.processes or (1 if settings.imagenet else None)  # one training on ImageNet fills a machine
    rows = sweep(runs, settings.trainings, settings.work, processes, weights=weights)
    write_rows(settings.results / "runs.csv", rows)
    write_rows(settings.results / "curves.csv", curves(runs, settings.trainings))
    return rows


def accuracies(rows: Sequence[Row], column: str, name: str) -> list[float]:
    """Of a variant, in percent, by seed."""
    found = [row for row in rows if row[column] == name]
    return [100 * float(row["validation_accuracy"]) for row in sorted(found, key=lambda row: int(row["seed"]))]


def compared(rows: Sequence[Row], column: str, baseline: str) -> dict[str, tuple[Summary, Difference]]:
    """Of every variant its accuracy, and its difference to the baseline, seed by seed."""
    base = accuracies(rows, column, baseline)
    found = {name: accuracies(rows, column, name) for name in dict.fromkeys(row[column] for row in rows)}
    return {name: (summary(own), paired(own, base)) for name, own in found.items()}
