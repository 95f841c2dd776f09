"""A small pyramid on CIFAR-100 with Laplacian, softmax and spatial-reduction attention, and with none, trained alike.

The learning rate of each is chosen on a tenth of the training set that its tuning runs have not seen; the runs that
are compared train on all of it again. Budgets: recipes/cifar100.yaml, and TUNING for the choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laplacianformer._util.errors import InputError
from laplacianformer.data._folders import FolderImages, open_folder
from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings, Verdict
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.experiments.sweep import Training
from laplacianformer.experiments.trainings import (
    CONTROLS,
    DEFAULT,
    QUICK,
    Variants,
    compared,
    other_mixer,
    placed,
    train,
)

SOURCE: str = "a course project's implementation of the paper, the only other one that publishes numbers"
CLAIM: str = (
    "A small pyramid with Laplacian attention reaches 56.7 to 60.2 % on CIFAR-100 where softmax attention reaches 69.2 "
    "(reported by a course project, with a learning rate of its own for each): 9.0 to 12.5 points less."
)
LEAST_REPORTED = 9.0  # points
OURS, SOFTMAX = "laplacian", "softmax"
ARMS: Variants = {
    OURS: DEFAULT,
    SOFTMAX: other_mixer("softmax"),
    # The ratios of PVT, by the widths of the stages.
    "spatial reduction": other_mixer("spatial-reduction", "{ratio: {32: 8, 64: 4, 128: 2, 160: 1}}"),
    "no mixing": CONTROLS["no mixing"],
}
ARMS = {name: placed(changes, "cifar100") for name, changes in ARMS.items()}
SEEDS = 3
RATES = (0.0015, 0.003, 0.006)  # further ones by factors of 2, while the best is the first or the last
MOST_RATES = 6
HELD_OUT = 10  # one image of so many of each class
TUNING = ("data.train_split=tuning", "data.val_split=held-out", "optimise.epochs=2", "optimise.warmup_epochs=0.25")


@dataclass(frozen=True)
class Budget:
    """What the runs have in common, at one scale."""

    recipe: str
    data: str | None  # of the final runs
    tuning_data: str | None
    shared: tuple[str, ...]
    tuning: tuple[str, ...]
    rates: tuple[float, ...]
    most_rates: int
    seeds: int


def run(settings: Settings) -> Outcome:
    budget = _budget(settings)
    tried = _tune(settings, budget)
    chosen = {name: _best(found) for name, found in tried.items()}
    runs = [
        Training(budget.recipe, {"mixer": name}, (*budget.shared, *ARMS[name], _rate(chosen[name])), seed, budget.data)
        for seed in range(budget.seeds)
        for name in ARMS
    ]
    rows = train(settings, runs)
    found = [{"mixer": name, "rate": rate, **row} for name in ARMS for rate, row in sorted(tried[name].items())]
    kept = ("mixer", "rate", "run", "validation_accuracy", "cpu_seconds")
    write_rows(settings.results / "rates.csv", [{name: row[name] for name in kept} for row in found])
    write_rows(settings.results / "accuracy.csv", variants.table(rows, "mixer", OURS))
    variants.draw(rows, "mixer", OURS, {}, settings.results / f"{settings.results.name}.png")
    return judge(rows, chosen)


def judge(rows: Sequence[Row], chosen: dict[str, float]) -> Outcome:
    """The verdict on the claimed gap, whatever attention is worth here: the claim is about such a pyramid."""
    gap = compared(rows, "mixer", OURS)[SOFTMAX][1]
    worth, _ = variants.worth_of_attention(rows, "mixer", OURS)
    rates = ", ".join(f"{name} {rate:g}" for name, rate in chosen.items())
    verdict: Verdict = "not confirmed at this scale"
    if gap.mean - gap.margin >= LEAST_REPORTED:
        verdict = "agrees"
    elif gap.mean + gap.margin < LEAST_REPORTED:
        verdict = "agrees in part" if gap.clear and gap.mean > 0 else "disagrees"
    return Outcome(
        f"{variants.measured(rows, 'mixer', OURS)} {worth} Learning rates, chosen on held-out "
        f"training images: {rates}.",
        verdict,
    )


# ---- learning rates ----


def _tune(settings: Settings, budget: Budget) -> dict[str, dict[float, Row]]:
    """The run of each learning rate that was tried, by arm: until no best one is the smallest or the largest."""
    tried: dict[str, dict[float, Row]] = {name: {} for name in ARMS}
    wanted = [(name, rate) for name in ARMS for rate in budget.rates]
    while wanted:
        overrides = [(*budget.shared, *budget.tuning, *ARMS[name], _rate(rate)) for name, rate in wanted]
        rows = train(settings, [Training(budget.recipe, {}, each, 0, budget.tuning_data) for each in overrides])
        for (name, rate), row in zip(wanted, rows, strict=True):
            tried[name][rate] = row
        wanted = [(name, rate) for name in ARMS for rate in _further(tried[name], budget.most_rates)]
    return tried


def _further(tried: dict[float, Row], most: int) -> list[float]:
    """The next rate to try, where the best is at an end."""
    best = _best(tried)
    if len(tried) >= most or len(tried) < 2:
        return []
    return [best / 2] if best == min(tried) else [best * 2] if best == max(tried) else []


def _best(tried: dict[float, Row]) -> float:
    """The rate with the highest accuracy; the smaller one of equals."""
    return max(sorted(tried), key=lambda rate: float(tried[rate]["validation_accuracy"]))


def _rate(rate: float) -> str:
    return f"optimise.lr={rate:g}"


# ---- data ----


def _budget(settings: Settings) -> Budget:
    if settings.quick:
        tuning = ("data.val_samples=71",)  # otherwise the same runs as the final ones
        return Budget("digits", None, None, QUICK, tuning, RATES[:1], 1, 1)
    if settings.cifar100 is None:
        raise InputError("this experiment trains on CIFAR-100: give --cifar100 DIR (DIR/train/CLASS, DIR/val/CLASS)")
    tuning_data = split(Path(settings.cifar100), settings.work / "cifar100")
    return Budget(
        "cifar100", settings.cifar100, str(tuning_data), (), TUNING, RATES, MOST_RATES, settings.seeds or SEEDS
    )


def split(root: Path, folder: Path) -> Path:
    """A folder with links to the training images: one of HELD_OUT of each class in held-out, the others in tuning."""
    images = open_folder(root / "train") if (root / "train").is_dir() else None
    if not isinstance(images, FolderImages):
        raise InputError(f"{root} has no folder train: expected {root}/train/CLASS/image")
    before: dict[int, int] = {}
    for path, target in zip(images.files, images.targets, strict=True):
        number = before[target] = before.get(target, -1) + 1
        part = "tuning" if number % HELD_OUT else "held-out"
        file = Path(path).resolve()
        link = folder / part / images.classes[target] / f"{number}{file.suffix}"
        if not (link.is_symlink() and link.readlink() == file):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(file)
    return folder
