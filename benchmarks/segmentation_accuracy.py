"""Semantic FPN on CamVid, from scratch: laplacianformer_nano, the same without attention or with softmax, and PVT v2.

    python benchmarks/segmentation_accuracy.py camvid/ --work runs/camvid-backbones

Every backbone is trained by the recipe camvid, with the same images in the same order, and evaluated on the images of
the test split, which no choice was made with. Writes results/benchmarks/segmentation/accuracy.csv after each training;
those that are there are not trained again, and one that was stopped continues. The schedule of a training ends with its
epochs, so trainings of different epochs don't compare: each number of epochs is a budget of its own. Runs on Linux, on
one core.
"""

import json
import shutil
from pathlib import Path

from comparing import RESULTS, parser_of, progress, show
from trainings import spent

from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.rows import Row, read_rows, write_rows

STEM = "stem_stride: 4, stem_kernel: 7"
BACKBONES = {  # the name in the table: the backbone and its arguments
    "laplacian": ("laplacianformer_nano", f"{{{STEM}}}"),
    "softmax": ("laplacianformer_nano", f"{{{STEM}, attention: softmax}}"),
    "no global branch": ("laplacianformer_nano", f"{{{STEM}, attention: no-mixing}}"),
    "pvt_v2_b0": ("pvt_v2_b0", "{}"),
}


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "segmentation")
    parser.add_argument("data", type=Path, metavar="DIR", help="CamVid: DIR/{train,val,test} and DIR/..._labels")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the trainings")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], metavar="N", help="(default: 0 1)")
    parser.add_argument("--epochs", type=int, default=40, metavar="N", help="of every training (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=tuple(BACKBONES), default=list(BACKBONES), metavar="NAME")
    arguments = parser.parse_args()
    file = arguments.output / "accuracy.csv"
    wanted = [(seed, name) for seed in arguments.seeds for name in arguments.only]
    for seed, name in progress(wanted, "trainings"):
        known = {(row["seed"], row["backbone"], row["epochs"]) for row in read_rows(file)}
        if (str(seed), name, str(arguments.epochs)) not in known:
            row = trained(arguments.data, arguments.work, name, seed, arguments.epochs)
            write_rows(file, [*read_rows(file), row])  # read again: another process may have added one
    show(read_rows(file))


def trained(data: Path, work: Path, name: str, seed: int, epochs: int) -> Row:
    folder = work / f"{name.replace(' ', '-')}-{seed}-{epochs}"
    backbone, options = BACKBONES[name]
    seconds = spent(
        folder,
        *("train", "--recipe", "camvid", "--data", str(data), "--resume", f"run.seed={seed}"),
        f"optimise.epochs={epochs}",
        *(f"segmenter.backbone={backbone}", f"segmenter.backbone_args={options}"),
    )
    weights, found = folder / "model.safetensors", folder.with_name(f"{folder.name}-test")
    spent(found, "eval", "--weights", str(weights), "--data", str(data), "--split", "test", "--workers", "0")
    scores = json.loads((found / "eval.json").read_text())
    classes = {f"iou_{label}": "" if value is None else round(value, 2) for label, value in scores["iou"].items()}
    shutil.copyfile(found / "segmentation.png", work / f"{folder.name}.png")
    return {
        "backbone": name,
        "seed": seed,
        "epochs": epochs,
        "test_mean_iou": round(scores["mean_iou"], 2),
        "pixel_accuracy": round(scores["pixel_accuracy"], 2),
        **classes,
        "cpu_seconds": round(seconds),
        **provenance(threads=1),
    }


if __name__ == "__main__":
    main()
