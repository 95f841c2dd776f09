"""Every token mixer of the package in the probe, trained alike on all training images of CIFAR-10."""

from laplacianformer.experiments import variants
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import write_rows
from laplacianformer.experiments.trainings import DEFAULT, Variants, other_mixer, with_arguments

SOURCE: str = "beyond the paper, on its tables of models"
CLAIM: str = "With everything else equal, Laplacian attention is more accurate than every other token mixer."
OURS = "laplacian"
# 49 landmarks or features for 256 tokens, as Laplacian attention has here; 2 x 25 of Skyformer, and 64 keys of spatial
# reduction. averaged: the mean of the values, as blocks here normalise before the attention (docs/baselines.md).
MIXERS: Variants = {
    OURS: DEFAULT,
    "gaussian": with_arguments(kernel="gaussian"),
    "softmax": other_mixer("softmax"),
    "spatial reduction": other_mixer("spatial-reduction", "{ratio: 2}"),
    "nystromformer": other_mixer("nystromformer"),
    "skyformer": other_mixer("skyformer", "{grid: 5, averaged: true}"),
    "soft": other_mixer("soft", "{averaged: true}"),
    "soft++": other_mixer("soft++"),
    "performer": other_mixer("performer"),
    "linear": other_mixer("linear"),
    "cosformer": other_mixer("cosformer"),
    "inline": other_mixer("inline"),
    "hedgehog": other_mixer("hedgehog"),
}
QUICK = (OURS, "softmax", "spatial reduction")
SEEDS = 3
# All training images, once: four times the steps of the other sweeps.
WHOLE = (
    *("data.train_samples=null", "data.val_samples=2000"),
    *("optimise.epochs=1", "optimise.warmup_epochs=0.1", "run.checkpoint_steps=500"),
)


def run(settings: Settings) -> Outcome:
    shared = () if settings.quick or settings.imagenet else WHOLE
    compared = {name: MIXERS[name] for name in QUICK} if settings.quick else MIXERS
    rows = variants.compare(settings, "mixer", compared, OURS, seeds=SEEDS, shared=shared)
    write_rows(settings.results / "accuracy.csv", variants.table(rows, "mixer", OURS))
    return variants.judge(rows, "mixer", OURS)
