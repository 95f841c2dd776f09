"""What trained weights are worth on other data: fine-tuning against training from scratch, with the same budget.

    python benchmarks/finetuning.py fashion-mnist/ --work runs/finetuning     the four idx files, plain or gzipped

The weights inside the package (laplacianformer_nano, trained on CIFAR-10) are fine-tuned on a tenth of Fashion-MNIST by
the recipe `finetune`; the same model is trained from random weights on the same images for as many epochs, with the
learning rate of the recipe `fashion-mnist`. Accuracy is that of 2,000 test images after the last epoch. Writes
results/benchmarks/finetuning: runs.csv and curves.csv with every training, and accuracy.csv. A run that was stopped
continues.
"""

from pathlib import Path

from comparing import RESULTS, parser_of, show

from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.experiments.statistics import paired, summary
from laplacianformer.experiments.sweep import Training, sweep
from laplacianformer.experiments.trainings import accuracies

SEEDS = 3
SHARED = (
    *("data.train_samples=6000", "data.val_samples=2000", "data.size=32", "data.cache=true", "data.workers=0"),
    *("augment.scale=null", "augment.crop_padding=2"),
    *("optimise.epochs=3", "optimise.batch_size=64", "run.tensorboard=false"),
)
# Overrides of the recipe, by the way of training.
WAYS = {
    "from scratch": (
        "model.name=laplacianformer_nano",
        "model.args.attention_args={grid: 4, gain: 4.0}",  # as those of the weights
        *("data.mean=[0.2860, 0.2860, 0.2860]", "data.std=[0.3530, 0.3530, 0.3530]", "data.crop_pct=1.0"),
        *("optimise.lr=0.002", "optimise.layer_decay=1.0"),
    ),
    "fine-tuned": ("model.weights=laplacianformer_nano",),
}


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "finetuning")
    parser.add_argument("data", type=Path, metavar="DIR", help="Fashion-MNIST")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the trainings")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="trainings at a time (default: 1)")
    arguments = parser.parse_args()
    runs = [
        Training("finetune", {"way": way}, (*SHARED, *overrides), seed, f"idx:{arguments.data}")
        for way, overrides in WAYS.items()
        for seed in range(SEEDS)
    ]
    trained = sweep(runs, arguments.output, arguments.work, arguments.processes, progress=print)
    rows = [row(trained, way) for way in WAYS]
    write_rows(arguments.output / "accuracy.csv", rows)
    show(rows)


def row(trained: list[Row], way: str) -> Row:
    own, scratch = (accuracies(trained, "way", name) for name in (way, "from scratch"))
    found, over = summary(own), paired(own, scratch)
    return {
        "way": way,
        "seeds": len(own),
        "accuracy": round(found.mean, 2),
        "deviation": round(found.deviation, 2),
        "over_scratch": round(over.mean, 2),
        "margin": round(over.margin, 2),
        **provenance(threads=1),
    }


if __name__ == "__main__":
    main()
