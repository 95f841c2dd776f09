"""The one training that the sweeps vary, and what they have in common.

Most vary the recipe probe-inpaint, in which attention alone mixes tokens and each hidden pixel has an answer of its
own. They share seeds, controls and the table of trainings, so a run that two sweeps ask for, such as the default one,
is trained once. --quick trains on a few handwritten digits, --imagenet at the paper's own scale.
"""

from collections.abc import Mapping, Sequence

from laplacianformer._util.errors import InputError
from laplacianformer.attention._options import needs_ablation
from laplacianformer.experiments.frame import Settings
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.statistics import PairedDifference, Summary, paired, summary
from laplacianformer.experiments.sweep import Training, sweep

SEEDS = 5
# Recipes: two models in which attention alone mixes tokens, one that says how bright hidden pixels are and one that
# classifies images, and a small LaplacianFormer.
PROBE, CLASSIFIER, PYRAMID = "probe-inpaint", "probe", "ablation"
QUICK = (
    *("data.train_samples=144", "data.val_samples=72", "data.workers=0", "optimise.epochs=2"),
    *("optimise.warmup_epochs=0.5", "run.tensorboard=false"),
)
QUICK_PIXELS = ("data.length=64", "encoder.landmarks=16")  # of digits
# By name of the variant: what is changed in the model of the recipe, such as attention=softmax. The default run is the
# recipe as it is.
Variants = Mapping[str, tuple[str, ...]]
DEFAULT: tuple[str, ...] = ()
NORMALISED: dict[str, object] = {"qk_norm": "true"}


def other_mixer(name: str, arguments: str = "{}") -> tuple[str, ...]:
    """The recipe with another token mixer, which does not have the arguments of the default one."""
    return f"attention={name}", f"attention_args={arguments}"


def with_arguments(**arguments: object) -> tuple[str, ...]:
    """The recipe with some arguments of its attention changed."""
    changed = (f"attention_args.{name}={value}" for name, value in arguments.items())
    return (*(("attention=ablation",) if needs_ablation(arguments) else ()), *changed)


# What attention is worth: the accuracy without any, and with the same for all queries.
CONTROLS: Variants = {
    "no mixing": other_mixer("no-mixing"),
    "mean over queries": ("attention=mean-over-queries",),
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
        Training(recipe, {**(labels or {}), column: name}, (*scaled, *shared, *placed(changes, recipe)), seed, data)
        for seed in range(1 if settings.quick else settings.seeds or seeds)
        for name, changes in variants.items()
    ]


def placed(changes: tuple[str, ...], recipe: str) -> tuple[str, ...]:
    """Changes of the attention as overrides of a recipe; others are overrides already."""
    model = "encoder" if recipe == PROBE else "model.args"
    return tuple(f"{model}.{change}" if change.startswith("attention") else change for change in changes)


def _scaled(settings: Settings, recipe: str) -> tuple[str, tuple[str, ...], str | None]:
    """Recipe, overrides and data at the scale that was asked for."""
    if settings.imagenet is not None and not settings.quick:
        return "imagenet", (), settings.imagenet
    if settings.quick and recipe == PROBE:
        return recipe, (*QUICK, *QUICK_PIXELS), "digits"
    if settings.quick:
        return "digits", (*QUICK, *(("model.name=attention_probe",) if recipe == CLASSIFIER else ())), None
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


def cpu_seconds(rows: Sequence[Row], column: str, name: str) -> list[float]:
    """What the trainings of a variant took, without those that were interrupted, of which it is not known."""
    return [float(row["cpu_seconds"]) for row in rows if row[column] == name and row["cpu_seconds"]]


def compared(rows: Sequence[Row], column: str, baseline: str) -> dict[str, tuple[Summary, PairedDifference]]:
    """For every variant its accuracy, and its difference to the baseline, paired by seed."""
    base = accuracies(rows, column, baseline)
    found = {name: accuracies(rows, column, name) for name in dict.fromkeys(row[column] for row in rows)}
    return {name: (summary(own), paired(own, base)) for name, own in found.items()}
