"""The default gain, sqrt(m), against 1 in pyramids: nano, and one as deep as the size "small" and narrower.

Nano is that of recipes/ablation.yaml, with 16 landmarks in three stages and 4 in the last. The deep one has 19 blocks
of heads of 16 channels, on the same images for the same time.
"""

from collections.abc import Sequence
from pathlib import Path

from laplacianformer.experiments import variants
from laplacianformer.experiments.drawing import tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row
from laplacianformer.experiments.trainings import CONTROLS, PYRAMID, Variants, accuracies, compared, runs_of, train
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "beyond the paper, which gives no gain"
CLAIM: str = "A gain of sqrt(m) is no less accurate than a gain of 1 in a pyramid, and in a deep one."
AUTO, ONE = "gain sqrt(m)", "gain 1"
SEEDS = 3
TOLERANCE = 0.5  # points by which gain 1 may be ahead at the upper end of the interval
# Both gains are stated, because the recipe may state another one.
GAINS: Variants = {
    AUTO: ("attention_args.gain=auto",),
    ONE: ("attention_args.gain=1.0",),
    "mean over queries": (*CONTROLS["mean over queries"], "attention_args.gain=auto"),
    "no mixing": CONTROLS["no mixing"],
}
DEPTH = (
    *("model.args.depths=[2,4,10,3]", "model.args.embed_dims=[16,32,48,64]", "model.args.num_heads=[1,2,3,4]"),
    "model.args.mlp_ratios=[4,4,4,4]",
)
MODELS = {"nano": (), "depth of small": DEPTH}


def run(settings: Settings) -> Outcome:
    runs = [
        run
        for model, shared in MODELS.items()
        for run in runs_of(settings, GAINS, "gain", seeds=SEEDS, recipe=PYRAMID, shared=shared, labels={"model": model})
    ]
    rows = train(settings, sorted(runs, key=lambda run: run.seed))
    _draw(rows, settings.results / "gain-in-depth.png")
    return judge(rows)


def judge(rows: Sequence[Row]) -> Outcome:
    """The verdict does not need attention to be worth something here: a gain may also spoil a training."""
    parts, differences = [], []
    for model in MODELS:
        found = [row for row in rows if row["model"] == model]
        worth, _ = variants.worth_of_attention(found, "gain", AUTO)
        parts.append(f"{model}: {variants.measured(found, 'gain', AUTO)} {worth}")
        differences.append(compared(found, "gain", AUTO)[ONE][1])
    measured = " ".join(parts)
    if any(difference.clear and difference.mean > 0 for difference in differences):
        return Outcome(measured, "disagrees")
    level = [difference.mean + difference.margin < TOLERANCE for difference in differences]
    return Outcome(measured, variants.verdict_of_parts(level))


def _draw(rows: Sequence[Row], path: Path) -> None:
    """Accuracy of each seed, model by model."""
    drawn = new_figure(7, 3.2)
    for axis, model in zip(drawn.subplots(1, len(MODELS)), MODELS, strict=True):
        found = [row for row in rows if row["model"] == model]
        for x, name in enumerate(GAINS):
            own = accuracies(found, "gain", name)
            axis.plot([x] * len(own), own, marker="o", linestyle="none", color="#4477aa", markersize=4)
        axis.set_xticks(range(len(GAINS)), list(GAINS), rotation=20, ha="right", fontsize=8)
        axis.set_title(model, fontsize=10)
        tidy(axis, x="", y="held-out top-1, %")
    save(drawn, path)
