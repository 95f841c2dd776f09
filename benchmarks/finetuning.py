"""What trained weights are worth on other data: fine-tuning against training from scratch, with the same budget.

    python benchmarks/finetuning.py fashion-mnist/ --work runs/finetuning     the four idx files, plain or gzipped

The weights inside the package (laplacianformer_nano, trained on CIFAR-10) are fine-tuned on a tenth of Fashion-MNIST by
the recipe `finetune`; the same model is trained from random weights on the same images for as many epochs. Accuracy is
that of the 10,000 test images after the last epoch. Both get the better of two learning rates, by the first seed.
Writes results/benchmarks/finetuning: runs.csv and curves.csv with every training, and accuracy.csv. A run that was
stopped continues.
"""

import argparse
from pathlib import Path

from comparing import RESULTS, parser_of, show

from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.experiments.statistics import paired, summary
from laplacianformer.experiments.sweep import Run, sweep

SEEDS = 3
SHARED = (
    *("data.train_samples=6000", "data.size=32", "data.cache=true", "data.workers=0"),
    *("augment.scale=null", "augment.crop_padding=2"),
    *("optimise.epochs=4", "optimise.batch_size=64", "run.tensorboard=false"),
)
SCRATCH = (
    "model.name=laplacianformer_nano",
    "model.args.attention_args={grid: 4, gain: 4.0}",  # as those of the weights
    *("data.mean=[0.2860, 0.2860, 0.2860]", "data.std=[0.3530, 0.3530, 0.3530]", "data.crop_pct=1.0"),
    "optimise.layer_decay=1.0",
)
# Overrides of the recipe by the way of training.
WAYS = {
    "from scratch": SCRATCH,
    "fine-tuned": ("model.weights=laplacianformer_nano",),
    "fine-tuned, two stages frozen": ("model.weights=laplacianformer_nano", "model.frozen_stages=2"),
    "fine-tuned, statistics kept": ("model.weights=laplacianformer_nano", "model.frozen_statistics=true"),
}
RATES = (1e-3, 3e-3)
TUNED = ("from scratch", "fine-tuned")  # the others take the learning rate of the second


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "finetuning")
    parser.add_argument("data", type=Path, metavar="DIR", help="Fashion-MNIST")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the trainings")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="trainings at a time (default: 1)")
    arguments = parser.parse_args()
    tried = train([run(arguments, way, rate, 0) for way in TUNED for rate in RATES], arguments)
    best = {way: max(RATES, key=lambda rate: accuracy(tried, way, rate)[0]) for way in TUNED}
    rates = {way: best.get(way, best["fine-tuned"]) for way in WAYS}
    rows = train([run(arguments, way, rates[way], seed) for seed in range(SEEDS) for way in WAYS], arguments)
    table = [row(rows, way, rates) for way in WAYS]
    write_rows(arguments.output / "accuracy.csv", table)
    show(table)


def run(arguments: argparse.Namespace, way: str, rate: float, seed: int) -> Run:
    overrides = (*SHARED, *WAYS[way], f"optimise.lr={rate}")
    return Run("finetune", {"way": way, "lr": rate}, overrides, seed, f"idx:{arguments.data}")


def train(runs: list[Run], arguments: argparse.Namespace) -> list[Row]:
    return sweep(runs, arguments.output, arguments.work, arguments.processes, progress=print)


def accuracy(rows: list[Row], way: str, rate: float) -> list[float]:
    """In percent, by seed."""
    found = [row for row in rows if (row["way"], row["lr"]) == (way, rate)]
    return [100 * float(row["validation_accuracy"]) for row in sorted(found, key=lambda row: int(row["seed"]))]


def row(rows: list[Row], way: str, rates: dict[str, float]) -> Row:
    own, scratch = (accuracy(rows, name, rates[name]) for name in (way, "from scratch"))
    found, over = summary(own), paired(own, scratch)
    return {
        "way": way,
        "lr": rates[way],
        "seeds": len(own),
        "accuracy": round(found.mean, 2),
        "deviation": round(found.deviation, 2),
        "over_scratch": round(over.mean, 2),
        "margin": round(over.margin, 2),
        **provenance(threads=1),
    }


if __name__ == "__main__":
    main()
