"""What the attention and the models cost on this machine: time in interleaved rounds, and peak memory.

    python benchmarks/models.py attention     one layer against softmax attention, by number of tokens
    python benchmarks/models.py backbones     laplacianformer_tiny against others at 224, 448 and 896 pixels
    python benchmarks/models.py autocast      inference at 224 pixels, in float32 and under bfloat16 autocast
    python benchmarks/models.py training      whole steps of training at 224 pixels, batch 16, against pvt_v2_b1
    python benchmarks/models.py resolution    peak memory of laplacianformer_tiny at 400 x 667 and 800 x 1333

With `--device cuda` on the GPU. Each writes a CSV and, where it says something, a plot to results/models/. Rivals
have the same number of threads, and freed memory is kept for all of them. `over_base` is the median over the rounds of
the time divided by that of `base` in the same round.
`floor` is laplacianformer_tiny with the global branch taken out: projections, local branch and MLPs only.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from measure import Call, in_child, interleaved, keep_freed_memory, peak_memory, quotient
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from laplacianformer import LaplacianAttention, SoftmaxAttention
from laplacianformer._util.provenance import provenance
from laplacianformer.attention import GridAttention
from laplacianformer.experiments.drawing import STYLES, log_ticks, tidy
from laplacianformer.plots.figure import new_figure, save

RESULTS = Path(__file__).parent.parent / "results" / "models"
TOKEN_SIDES = (28, 56, 112, 224)
IMAGE_SIZES = (224, 448, 896)
TRAINING_SIZE, TRAINING_BATCH = 224, 16

Row = dict[str, Any]
# Labels of the rows, what builds each call, and which of them the others are divided by.
Comparison = tuple[Row, dict[str, Callable[[], Call]], str]


class LocalOnly(GridAttention):
    """The global branch taken out."""

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: tuple[int, int]) -> Tensor:
        return v_bhnd


BACKBONES: dict[str, Callable[[int], nn.Module]] = {
    "laplacianformer_tiny": lambda size: timm.create_model("laplacianformer_tiny"),
    "floor": lambda size: timm.create_model("laplacianformer_tiny", attention=LocalOnly),
    "pvt_v2_b1": lambda size: timm.create_model("pvt_v2_b1"),
    "swin_tiny": lambda size: timm.create_model("swin_tiny_patch4_window7_224", img_size=size),
    "deit_small": lambda size: timm.create_model("deit_small_patch16_224", img_size=size),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="(default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="a measured call (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder (default: results/models)")
    arguments = parser.parse_args()
    origin = in_child(partial(provenance, arguments.device))
    rows: list[Row] = []
    for labels, builders, base in PARTS[arguments.part]():
        rows += [labels | row | origin for row in compare(builders, base, arguments)]
        write(rows, arguments.output / f"{arguments.part}.csv")
    show(rows)
    if arguments.part == "backbones":
        draw(rows, arguments.output / "backbones.png")


def attention() -> Iterator[Comparison]:
    """Both layers with the same projections, positions and local branch: 2 heads of 32, batch 1."""
    for side in TOKEN_SIDES:
        for training in (False, True):

            def build(layer: type[GridAttention], side: int = side, training: bool = training) -> Call:
                module = layer(64, 2).train(training)
                tokens = torch.randn(1, side * side, 64)
                return run(lambda: module(tokens, (side, side)), training)

            builders = {"laplacian": partial(build, LaplacianAttention), "softmax": partial(build, SoftmaxAttention)}
            yield {"tokens": side * side, "training": training}, builders, "softmax"


def backbones() -> Iterator[Comparison]:
    for size in IMAGE_SIZES:
        for batch in (1, 4):
            for training in (False, True):
                builders = {name: partial(build_model, name, (size, size), batch, training) for name in BACKBONES}
                yield {"size": size, "batch": batch, "training": training}, builders, "floor"


def autocast() -> Iterator[Comparison]:
    builders = {}
    for name in ("laplacianformer_tiny", "floor", "pvt_v2_b1"):
        builders[name] = partial(build_model, name, (224, 224), 4, training=False)
        builders[f"{name}, bfloat16"] = partial(build_autocast, name, (224, 224), 4)
    yield {"size": 224, "batch": 4}, builders, "floor"


def training() -> Iterator[Comparison]:
    builders = {name: partial(build_training, name) for name in ("laplacianformer_tiny", "pvt_v2_b1")}
    yield {"size": TRAINING_SIZE, "batch": TRAINING_BATCH}, builders, "pvt_v2_b1"


def resolution() -> Iterator[Comparison]:
    for training in (False, True):
        for size in ((400, 667), (800, 1333)):
            builders = {"laplacianformer_tiny": partial(build_model, "laplacianformer_tiny", size, 1, training)}
            labels = {"height": size[0], "width": size[1], "training": training}
            yield labels, builders, "laplacianformer_tiny"


PARTS: dict[str, Callable[[], Iterator[Comparison]]] = {
    "attention": attention,
    "backbones": backbones,
    "autocast": autocast,
    "training": training,
    "resolution": resolution,
}


def build_model(name: str, size: tuple[int, int], batch: int, training: bool) -> Call:
    model = BACKBONES[name](size[0]).train(training)
    images = torch.randn(batch, 3, *size)
    return run(lambda: model(images), training)


def build_autocast(name: str, size: tuple[int, int], batch: int) -> Call:
    call = build_model(name, size, batch, training=False)
    device = torch.get_default_device().type

    def in_bfloat16() -> object:
        with torch.autocast(device, torch.bfloat16):
            return call()

    return in_bfloat16


def build_training(name: str) -> Call:
    """Forward, loss, backward and a step of AdamW."""
    model = BACKBONES[name](TRAINING_SIZE).train()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    images = torch.randn(TRAINING_BATCH, 3, TRAINING_SIZE, TRAINING_SIZE)
    labels = torch.randint(1000, (TRAINING_BATCH,))

    def step() -> None:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()

    return step


def run(forward: Call, training: bool) -> Call:
    """Inference, or forward and backward."""
    if training:
        return lambda: forward().sum().backward()
    return torch.inference_mode()(forward)


def compare(builders: dict[str, Callable[[], Call]], base: str, arguments: argparse.Namespace) -> Iterator[Row]:
    """Everything in forked processes: this one never starts threads or a GPU, so that forking stays safe."""

    def peak(build: Callable[[], Call]) -> float:
        torch.set_num_threads(arguments.threads)
        torch.set_default_device(arguments.device)
        return peak_memory(build(), arguments.device)

    def times_of_all() -> dict[str, Any]:
        torch.set_num_threads(arguments.threads)
        torch.set_default_device(arguments.device)
        keep_freed_memory()
        calls = {name: build() for name, build in builders.items()}
        return interleaved(calls, arguments.seconds, rounds=3, device=arguments.device)

    memory = {name: in_child(partial(peak, build)) for name, build in builders.items()}
    timed = in_child(times_of_all)
    times = timed["times"]
    for name in builders:
        yield {
            "name": name,
            "milliseconds": round(times[name]["median_ms"], 3),
            "base": base,
            "over_base": round(quotient(timed["each"], name, base), 3),
            "rounds": times[name]["rounds"],
            "cpu_over_wall": round(timed["cpu_over_wall"], 2),
            "peak_megabytes": round(memory[name], 1),
        }


def write(rows: list[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def draw(rows: list[Row], path: Path) -> None:
    """Time and memory of one image by its side, in inference and in training."""
    figure = new_figure(9, 5.5)
    panels = figure.subplots(2, 2)
    for down, (column, label) in enumerate((("milliseconds", "time, ms"), ("peak_megabytes", "peak memory, MB"))):
        for across, (training, title) in enumerate(((False, "inference"), (True, "forward and backward pass"))):
            axis = panels[down, across]
            for style, name in zip(STYLES, BACKBONES, strict=False):
                of_one = [r for r in rows if r["name"] == name and r["batch"] == 1 and r["training"] == training]
                axis.plot([r["size"] for r in of_one], [r[column] for r in of_one], **style, markersize=5, label=name)
            axis.set_title(f"{title}, one image", fontsize=10)
            tidy(axis, x="side of the image, pixels", y=label)
            log_ticks(axis, IMAGE_SIZES)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    save(figure, path)


def show(rows: list[Row]) -> None:
    table = Table(title=f"{rows[0]['machine']}, torch {rows[0]['torch']}, commit {rows[0]['commit']}")
    columns = [column for column in rows[0] if column not in provenance()]
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console(width=max(Console().width, 160)).print(table)


if __name__ == "__main__":
    main()
