"""A softmax model that is trained, then converted, against Laplacian attention from scratch, at no less cost.

    python benchmarks/conversion_against_scratch.py cifar10/ --work runs/against-scratch

laplacianformer_nano on 10,000 images of CIFAR-10 (DIR/train/CLASS/*.png, DIR/val/CLASS/*.png), by the recipe cifar10:
with softmax attention for 5 epochs and then converted (match on 2,000 images, distil once over all, with labels); and
with Laplacian attention from random weights for 7 epochs, which cost at least as much. Accuracy is that of 5,000 test
images. Writes results/benchmarks/conversion/against_scratch.csv, with the CPU seconds of each training, after each
seed; seeds that are there are not trained again, and a training that was stopped continues. Runs on Linux.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from comparing import RESULTS, parser_of, progress, show

from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.rows import Row, read_rows, write_rows

SOFTMAX_EPOCHS, SCRATCH_EPOCHS = 5, 7
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
            "top1": accuracy(folder / "metrics.csv"),
            "cpu_seconds": round(seconds[name]),
            "total_cpu_seconds": round(totals[name]),
            **provenance(threads=1),
        }
        for name, folder in folders.items()
    ]


def spent(folder: Path, *arguments: str, ending: str = "") -> float:
    """Run a command into a folder to its end, unless that was done, and give the CPU seconds that it took in all: also
    those of processes that were stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    record, log = folder / "cost.json", folder.with_name(f"{folder.name}.log")
    before = json.loads(record.read_text()) if record.exists() else {"cpu_seconds": 0.0, "finished": False}
    if before["finished"]:
        return float(before["cpu_seconds"])
    total = before["cpu_seconds"]
    command = [sys.executable, "-m", "laplacianformer", *arguments, "--output", f"{folder}{ending}"]
    with log.open("ab") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": "1"})
        while child.poll() is None:
            total = before["cpu_seconds"] + cpu_seconds(child.pid)
            record.write_text(json.dumps({"cpu_seconds": total, "finished": False}))
            time.sleep(1)
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments[:2])} ended with an error: see {log}")
    record.write_text(json.dumps({"cpu_seconds": total, "finished": True}))
    return total


def cpu_seconds(process: int) -> float:
    """What a process, all its threads together, has used so far."""
    numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")  # in user and in kernel mode


def accuracy(metrics: Path) -> float:
    """The last one, in percent."""
    found = [row["validation_accuracy"] for row in read_rows(metrics)]
    return round(100 * float([value for value in found if value != ""][-1]), 2)


if __name__ == "__main__":
    main()
