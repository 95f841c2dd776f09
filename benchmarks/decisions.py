"""The evidence behind the defaults: short CIFAR-10 trainings of a small model, everything else equal.

    python benchmarks/decisions.py run --data CIFAR10_FOLDER     train what is not yet in results/decisions/runs.csv
    python benchmarks/decisions.py report                        means over seeds, plot and table from that file

The data is an image folder, {train,val}/<class>/*.png. Every finished run is appended to the CSV at once and
is never trained twice, so the sweep can be killed and started again. Questions: the gain of the whitened part,
the Gram matrix W, and the number of Newton-Schulz steps.
"""

import argparse
import csv
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from laplacianformer import LaplacianFormer
from laplacianformer._util.provenance import provenance

RESULTS = Path(__file__).parent.parent / "results" / "decisions"
STEPS = (2, 4, 6, 8, 12, 20)
# All start from gain 1, W among keys and 6 steps, which is the first, and change one or two things of it.
# 49 landmarks on the 16 x 16 and 8 x 8 grids of this model: sqrt(m) = 7.
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("steps", {"gram": "keys", "iterations": 6}),
    *(("gain", {"gain": gain}) for gain in (0.5, 7.0, "learned")),
    *(("steps", {"gram": "keys", "iterations": steps}) for steps in STEPS if steps != 6),
    *(("steps", {"gram": "cross", "iterations": steps}) for steps in STEPS),
    ("solver", {"gram": "keys", "solver": "cholesky"}),
    ("solver", {"gram": "cross", "solver": "cholesky"}),
]
FIELDS = ["question", "setting", "seed", "accuracy", "loss", "largest_gradient", "parameters", "seconds"]
FIELDS += ["images", "epochs", "batch", "commit", "machine", "date", "torch"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train what is missing")
    run.add_argument("--data", type=Path, required=True, help="CIFAR-10 as an image folder")
    run.add_argument("--images", type=int, default=6_000, help="training images (default: %(default)s)")
    run.add_argument("--epochs", type=int, default=4, help="(default: %(default)s)")
    run.add_argument("--batch", type=int, default=64, help="(default: %(default)s)")
    run.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="one process a seed may run (default: 0 1 2)"
    )
    run.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    commands.add_parser("report", help="plot and table from results/decisions/runs.csv")
    arguments = parser.parse_args()
    if arguments.command == "report":
        import decisions_report

        decisions_report.report(RESULTS)
    else:
        torch.set_num_threads(arguments.threads)
        sweep(arguments)


def sweep(arguments: argparse.Namespace) -> None:
    path = RESULTS / "runs.csv"
    data = load(arguments.data, arguments.images)
    for seed in arguments.seeds:
        for question, setting in SETTINGS:
            budget = {"images": arguments.images, "epochs": arguments.epochs, "batch": arguments.batch}
            row = {"question": question, "setting": json.dumps(setting), "seed": seed} | budget
            if is_finished(row, path):
                continue
            start = time.perf_counter()
            measured = train(setting, seed, data, arguments.epochs, arguments.batch)
            row |= measured | {"seconds": round(time.perf_counter() - start)} | provenance()
            append(path, row)
            print(
                f"{question} {row['setting']} seed {seed}: {measured['accuracy']:.2f} % in {row['seconds']} s",
                flush=True,
            )


def is_finished(wanted: dict[str, Any], path: Path) -> bool:
    """Whether the file has a row with this question, setting, seed and budget."""
    if not path.exists():
        return False
    with path.open(newline="") as file:
        return any(all(row[key] == str(value) for key, value in wanted.items()) for row in csv.DictReader(file))


def append(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def load(folder: Path, images: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Both splits as (uint8 images, labels), the training split cut to `images`, the same number of each class."""
    splits = {}
    for split, share in (("train", images // 10), ("val", None)):
        classes = sorted(path for path in (folder / split).iterdir() if path.is_dir())
        files = [(file, label) for label, name in enumerate(classes) for file in sorted(name.glob("*.png"))[:share]]
        pixels = np.stack([np.asarray(Image.open(file)) for file, _ in files])
        splits[split] = (torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.tensor([label for _, label in files]))
    return splits


def small_model(setting: dict[str, Any]) -> LaplacianFormer:
    return LaplacianFormer(
        depths=(1, 1, 1),
        embed_dims=(32, 64, 128),
        num_heads=(1, 2, 4),
        mlp_ratios=(2, 2, 2),
        stem_kernel=3,
        stem_stride=2,
        num_classes=10,
        attention_args={"gain": 1.0} | setting,
    )


def train(setting: dict[str, Any], seed: int, data: dict[str, tuple[Tensor, Tensor]], epochs: int, batch: int) -> dict:
    torch.manual_seed(seed)
    model = small_model(setting)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    images, labels = data["train"]
    steps = epochs * (len(images) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, steps))
    largest, loss = 0.0, torch.tensor(0.0)
    for _ in range(epochs):
        for index in torch.randperm(len(images))[: len(images) // batch * batch].split(batch):
            loss = F.cross_entropy(model(augment(images[index])), labels[index])
            optimizer.zero_grad()
            loss.backward()
            largest = max(largest, torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0).item())
            optimizer.step()
            schedule.step()
    parameters = sum(p.numel() for p in model.parameters())
    accuracy = evaluate(model, *data["val"])
    return {"accuracy": accuracy, "loss": loss.item(), "largest_gradient": largest, "parameters": parameters}


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up over the first tenth, then a cosine to zero."""
    warm_up = steps // 10
    return (
        (step + 1) / warm_up if step < warm_up else 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))
    )


def augment(images: Tensor) -> Tensor:
    """A random shift of up to 4 pixels for the batch, and a random flip of each image."""
    dy, dx = torch.randint(0, 9, (2,)).tolist()
    shifted = F.pad(images, (4, 4, 4, 4))[:, :, dy : dy + 32, dx : dx + 32]
    flip = torch.rand(len(images), 1, 1, 1) < 0.5
    return normalise(torch.where(flip, shifted.flip(3), shifted))


def normalise(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


@torch.inference_mode()
def evaluate(model: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    right = [
        (model(normalise(part)).argmax(1) == wanted)
        for part, wanted in zip(images.split(500), labels.split(500), strict=True)
    ]
    return 100 * torch.cat(right).float().mean().item()


if __name__ == "__main__":
    main()
