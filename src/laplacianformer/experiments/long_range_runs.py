"""What the experiment long-range trains: every token mixer on four tasks, within a budget for two cores."""

import random
from dataclasses import dataclass
from pathlib import Path

from laplacianformer._util.errors import InputError
from laplacianformer.experiments.frame import Settings
from laplacianformer.experiments.sweep import Training

OURS, PLAIN = "laplacian", "laplacian, plain"  # both are ours
# As in the experiment kernel-convergence: the mean of the values, because blocks here normalise before the attention.
AVERAGED = "{averaged: true}"
NORMALISED = "{qk_norm: true}"
# Name of the token mixer, and its arguments. The gain is the default one, the root of the number of landmarks.
MIXERS: dict[str, tuple[str, str]] = {
    OURS: ("laplacian", NORMALISED),  # as in the recipes
    PLAIN: ("laplacian", "{}"),
    "gaussian": ("ablation", "{kernel: gaussian, qk_norm: true}"),
    "gaussian, plain": ("ablation", "{kernel: gaussian}"),
    "softmax": ("softmax", "{}"),
    "nystromformer": ("nystromformer", "{}"),
    "skyformer": ("skyformer", AVERAGED),
    "soft++": ("soft++", AVERAGED),
    "performer": ("performer", "{}"),
    "linear": ("linear", "{}"),
    "local": ("local", "{}"),
    "none": ("none", "{}"),
}
CONTROLS = ("local", "none")
STANDARD = "softmax"
SEEDS = 3
SHARED = (
    *("data.workers=0", "data.cache=true", "encoder.dropout=0", "optimise.lr=2e-3", "optimise.warmup_epochs=0.5"),
    *("run.eval_epochs=1", "run.accelerator=cpu", "run.devices=1"),
    *("run.log_steps=25", "run.checkpoint_steps=100", "run.tensorboard=false"),
)


@dataclass(frozen=True)
class Budget:
    """What a run of lra-TASK gets."""

    samples: int
    held_out: int
    epochs: int
    batch: int
    landmarks: int
    lengths: tuple[str, ...] = ()  # overrides

    @property
    def overrides(self) -> tuple[str, ...]:
        return (
            *(f"data.train_samples={self.samples}", f"data.val_samples={self.held_out}"),
            *(f"optimise.epochs={self.epochs}", f"optimise.batch_size={self.batch}"),
            *(f"encoder.landmarks={self.landmarks}", *self.lengths),
        )


BUDGET: dict[str, Budget] = {
    "listops": Budget(16_000, 1000, 3, 64, 16, ("data.length=50", "data.shortest=10")),  # 750 steps
    "pathfinder": Budget(320, 400, 2, 16, 64),  # 40 steps, which are far too few to leave chance
    "image": Budget(4096, 1000, 3, 32, 32, ("data.length=256",)),  # 16 x 16 pixels, 384 steps
    "text": Budget(4096, 1000, 3, 32, 32, ("data.length=256",)),  # 384 steps
}
QUICK_MIXERS = (OURS, "none")
QUICK_SHARED = (
    *("data.workers=0", "data.train_samples=16", "data.val_samples=8", "optimise.epochs=2", "optimise.batch_size=8"),
    *("optimise.warmup_epochs=0.5", "run.eval_epochs=1", "encoder.landmarks=8"),
    "run.tensorboard=false",
)
QUICK: dict[str, tuple[str, ...]] = {
    "listops": ("data.length=60", "data.shortest=10"),
    "pathfinder": (),
    "image": ("data.length=64",),
    "text": ("data.length=100",),
}


def runs_of(settings: Settings) -> list[Training]:
    """Seeds are the outer loop: a sweep that is stopped leaves complete comparisons."""
    data = _data(settings)
    return [
        Training(
            f"lra-{task}",
            {"task": task, "attention": name},
            (*_budget(task, settings.quick), f"encoder.attention={mixer}", f"encoder.attention_args={arguments}"),
            seed,
            data.get(task),
        )
        for seed in range(1 if settings.quick else SEEDS)
        for task in (QUICK if settings.quick else BUDGET)
        for name, (mixer, arguments) in MIXERS.items()
        if not settings.quick or name in QUICK_MIXERS
    ]


def _budget(task: str, quick: bool) -> tuple[str, ...]:
    return (*QUICK_SHARED, *QUICK[task]) if quick else (*SHARED, *BUDGET[task].overrides)


def _data(settings: Settings) -> dict[str, str]:
    """What --data is for the tasks that are not generated."""
    if settings.quick:
        return {"image": "digits", "text": str(_small_corpus(settings.work / "texts"))}
    if settings.cifar10 is None or settings.imdb is None:
        raise InputError(
            "this experiment trains on CIFAR-10 and IMDb: give --cifar10 DIR (DIR/train/CLASS, DIR/val/CLASS) and "
            "--imdb DIR (DIR/train/{pos,neg}/*.txt, DIR/test/{pos,neg}/*.txt)"
        )
    return {"image": settings.cifar10, "text": settings.imdb}


def _small_corpus(root: Path) -> Path:
    """A few generated texts of two classes, in IMDb's layout."""
    chance = random.Random(0)
    for split in ("train", "test"):
        for label, words in (("pos", "good fine great"), ("neg", "bad poor awful")):
            folder = root / split / label
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(8):
                text = " ".join(chance.choices([*words.split(), "a", "film"], k=12))
                (folder / f"{number}.txt").write_text(text)
    return root
