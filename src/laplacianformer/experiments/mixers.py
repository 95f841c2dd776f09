"""Every token mixer of the package on the probe, trained alike on the whole training set of CIFAR-10."""

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import write_rows
from laplacianformer.experiments.trainings import DEFAULT, IMAGES, Variants, other_mixer, with_arguments

SOURCE: str = "beyond the paper, on its tables of models"
CLAIM: str = "With everything else equal, Laplacian attention is more accurate than every other token mixer."
OURS = "laplacian"
# 16 landmarks where there are any, as Laplacian attention has here: the 64 tokens in 4 x 4 cells, or 2 x 2 tokens per
# key. averaged: the mean of the values, as blocks here normalise before the attention (docs/baselines.md).
MIXERS: Variants = {
    OURS: DEFAULT,
    "gaussian": with_arguments(kernel="gaussian"),
    "softmax": other_mixer("softmax"),
    "spatial reduction": other_mixer("spatial-reduction", "{ratio: 2}"),
    "nystromformer": other_mixer("nystromformer", "{grid: 4}"),
    "skyformer": other_mixer("skyformer", "{grid: 4, averaged: true}"),
    "soft": other_mixer("soft", "{grid: 4, averaged: true}"),
    "soft++": other_mixer("soft++", "{grid: 4}"),
    "performer": other_mixer("performer"),
    "linear": other_mixer("linear"),
    "cosformer": other_mixer("cosformer"),
    "inline": other_mixer("inline"),
    "hedgehog": other_mixer("hedgehog"),
}
QUICK = (OURS, "softmax", "spatial reduction")
SEEDS = 3
# All images, and as many epochs as take about five minutes of one thread.
WHOLE = ("data.train_samples=null", "data.val_samples=null", "optimise.epochs=2", "optimise.warmup_epochs=0.25")


def run(settings: Settings) -> Outcome:
    shared = () if settings.quick or settings.imagenet else WHOLE
    compared = {name: MIXERS[name] for name in QUICK} if settings.quick else MIXERS
    rows = variants.compare(settings, "mixer", compared, OURS, seeds=SEEDS, recipe=IMAGES, shared=shared)
    write_rows(settings.results / "accuracy.csv", variants.table(rows, "mixer", OURS))
    return variants.judge(rows, "mixer", OURS)
