"""A softmax model that is trained, then converted, against Laplacian attention from scratch, at about the same cost.

    python benchmarks/conversion_against_scratch.py cifar10/ --work runs/against-scratch

laplacianformer_nano on 10,000 images of CIFAR-10 (DIR/train/CLASS/*.png, DIR/val/CLASS/*.png), by the recipe cifar10:
with softmax attention for 5 epochs and then converted (match on 2,000 images, distil once over all, with labels); and
with Laplacian attention from random weights for 8 epochs, which cost about as much: the column total_cpu_seconds says
how much it was. Accuracy is that of 5,000 test images. Writes results/benchmarks/conversion/against_scratch.csv, with
the CPU seconds of each training, after each seed; seeds that are there are not trained again, and a training that was
stopped continues. Runs on Linux.
"""

from pathlib import Path

from comparing import RESULTS, parser_of, progress, show
from trainings import spent

from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.rows import Row, read_rows, write_rows

SOFTMAX_EPOCHS, SCRATCH_EPOCHS = 5, 8
IMAGES = ("data.train_samples=10000", "data.val_samples=5000", "data.workers=0", "run.tensorboard=false")
LAPLACIAN = "{grid: 4, gain: learned}"
CONVERSION = (
    *("data.cache=true", "augment.scale=null", "augment.crop_padding=4"),  # as in the recipe cifar10
    *(f"convert.attention_args={LAPLACIAN}", "convert.match_samples=2000", "convert.labels=1.0"),
    *("match.batch_size=64", "distil.batch_size=64", "distil.epochs=1", "distil.lr=5e-4"),
)


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "conversion")
    parser.add_argument("data", type=Path, metavar="DIR", help="CIFAR-10 as an image folder")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the trainings")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="(default: %(default)s)")
    arguments = parser.parse_args()
    file = arguments.output / "against_scratch.csv"
    rows = read_rows(file)
    for seed in progress(range(arguments.seeds), "seeds"):
        if not any(int(row["seed"]) == seed for row in rows):
            rows += compared(arguments.data, arguments.work, seed)
            write_rows(file, rows)
    show(rows)
    for name in ("converted", "from scratch"):
        spent_on = [int(row["total_cpu_seconds"]) for row in rows if row["model"] == name]
        print(f"{name}: {sum(spent_on) / len(spent_on):.0f} CPU seconds in all, on average")


def compared(data: Path, work: Path, seed: int) -> list[Row]:
    softmax, converted, scratch = (work / f"{name}-{seed}" for name in ("softmax", "converted", "scratch"))
    shared = ("--data", str(data), "--resume", *IMAGES, f"run.seed={seed}")
    recipe = ("train", "--recipe", "cifar10", *shared)
    weights = str(softmax / "model.safetensors")
    seconds = {
        "softmax": spent(softmax, *recipe, f"optimise.epochs={SOFTMAX_EPOCHS}", "model.args={attention: softmax}"),
        "converted": spent(converted, "convert", weights, *shared, *CONVERSION, ending=".safetensors"),
        "from scratch": spent(
            scratch, *recipe, f"optimise.epochs={SCRATCH_EPOCHS}", f"model.args={{attention_args: {LAPLACIAN}}}"
        ),
    }
    folders = {"softmax": softmax, "converted": converted / "distil", "from scratch": scratch}
    totals = {**seconds, "converted": seconds["softmax"] + seconds["converted"]}
    return [
        {
            "model": name,
            "seed": seed,
            "epochs": SCRATCH_EPOCHS if name == "from scratch" else SOFTMAX_EPOCHS,
            "top1": accuracy(folder / "metrics.csv"),
            "cpu_seconds": round(seconds[name]),
            "total_cpu_seconds": round(totals[name]),
            **provenance(threads=1),
        }
        for name, folder in folders.items()
    ]


def accuracy(metrics: Path) -> float:
    """The last one, in percent."""
    found = [row["validation_accuracy"] for row in read_rows(metrics)]
    return round(100 * float([value for value in found if value != ""][-1]), 2)


if __name__ == "__main__":
    main()
