"""The cost of the attention and the models on this machine: time in interleaved rounds, and peak memory.

    python benchmarks/models.py attention     one layer against softmax attention, by number of tokens
    python benchmarks/models.py backbones     laplacianformer_tiny against others at 224, 448 and 896 pixels
    python benchmarks/models.py autocast      at 224 pixels, in float32 and under bfloat16 autocast
    python benchmarks/models.py training      whole steps of training at 224 pixels, batch 16, against pvt_v2_b1
    python benchmarks/models.py resolution    peak memory of laplacianformer_tiny at 400 x 667 and 800 x 1333

With `--device cuda` on the GPU. Each part writes a CSV to results/benchmarks/models/, `backbones` also a plot. Rivals
have the same number of threads, and freed memory is kept for all of them. `over_base` is the median over the rounds of
the time divided by that of `base` in the same round. `floor` is laplacianformer_tiny without the global branch:
projections, local branch and MLPs only. `products` is the limit: the matrix products of laplacianformer_tiny alone, its
linear layers and patch embeddings, one after the other on memory that is already there; each by the faster of PyTorch's
own product and oneDNN's.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import timm
import torch
from comparing import RESULTS, Comparison, add_measuring, compare_all, inference_or_training, parser_of
from torch import Tensor, nn

from laplacianformer import LaplacianAttention, SoftmaxAttention
from laplacianformer._util.measuring import Call
from laplacianformer.attention import GridAttention
from laplacianformer.experiments.drawing import STYLES, log_ticks, tidy
from laplacianformer.experiments.rows import Row
from laplacianformer.ops.linear import onednn
from laplacianformer.plots._figure import new_figure, save

TOKEN_SIDES = (28, 56, 112, 224)
IMAGE_SIZES = (224, 448, 896)
TRAINING_SIZE, TRAINING_BATCH = 224, 16


class LocalOnly(GridAttention):
    """No global branch."""

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
    parser = parser_of(__doc__, RESULTS / "models")
    parser.add_argument("part", choices=PARTS, help="what to measure")
    add_measuring(parser, seconds=3.0)
    arguments = parser.parse_args()
    rows = compare_all(PARTS[arguments.part](), arguments.output / f"{arguments.part}.csv", arguments)
    if arguments.part == "backbones":
        draw(rows, arguments.output / "backbones.png")


def attention() -> Iterator[Comparison]:
    """Both layers with the same projections, positions and local branch: 2 heads of 32, batch 1."""
    for side in TOKEN_SIDES:
        for training in (False, True):

            def build(layer: type[GridAttention], side: int = side, training: bool = training) -> Call:
                module = layer(64, 2).train(training)
                tokens = torch.randn(1, side * side, 64)
                return inference_or_training(lambda: module(tokens, (side, side)), training)

            builders = {"laplacian": partial(build, LaplacianAttention), "softmax": partial(build, SoftmaxAttention)}
            yield {"tokens": side * side, "training": training}, builders, "softmax"


def backbones() -> Iterator[Comparison]:
    for size in IMAGE_SIZES:
        for batch in (1, 4):
            for training in (False, True):
                builders = {name: partial(build_model, name, (size, size), batch, training) for name in BACKBONES}
                builders["products"] = partial(build_products, (size, size), batch, training)
                yield {"size": size, "batch": batch, "training": training}, builders, "floor"


def autocast() -> Iterator[Comparison]:
    for training in (False, True):
        builders = {}
        for name in ("laplacianformer_tiny", "floor", "pvt_v2_b1"):
            builders[name] = partial(build_model, name, (224, 224), 4, training)
            builders[f"{name}, bfloat16"] = partial(build_autocast, name, (224, 224), 4, training)
        yield {"size": 224, "batch": 4, "training": training}, builders, "floor"


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
    return inference_or_training(lambda: model(images), training)


def build_products(size: tuple[int, int], batch: int, training: bool) -> Call:
    """For training also those of the gradients, of inputs and of weights."""
    made: dict[tuple[bool, int, int], Tensor] = {}

    def matrix(rows: int, columns: int, is_result: bool = False) -> Tensor:
        """Matrices of equal shapes are one, but no result is an input."""
        return made.setdefault((is_result, rows, columns), torch.randn(rows, columns))

    known: dict[tuple[str, int, int, int], Call] = {}
    products: list[Call] = []
    for rows, width, out in product_shapes(BACKBONES["laplacianformer_tiny"](size[0]), torch.randn(1, 3, *size)):
        tokens = batch * rows
        x, weight, grad = matrix(tokens, width), matrix(out, width), matrix(tokens, out)
        results = matrix(tokens, out, True), matrix(tokens, width, True), matrix(out, width, True)
        ways = {
            "output": [partial(torch.mm, x, weight.t(), out=results[0]), partial(onednn.product, x, weight)],
            "input": [partial(torch.mm, grad, weight, out=results[1]), partial(onednn.product, grad, weight.t())],
            "weight": [partial(torch.mm, grad.t(), x, out=results[2]), partial(onednn.weight_gradient, grad, x)],
        }
        for name in ways if training else ("output",):
            key = name, tokens, width, out
            products.append(known.get(key) or known.setdefault(key, fastest(ways[name])))

    def call() -> None:
        for product in products:
            product()

    return torch.no_grad()(call)


@torch.no_grad()
def fastest(calls: list[Call]) -> Call:
    """The one whose fastest of five runs is the fastest; the first one where oneDNN can't run."""
    if torch.get_default_device().type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return calls[0]

    def seconds(call: Call) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    best = [float("inf")] * len(calls)
    for _ in range(6):  # of which the first warms up
        best = [min(least, seconds(call)) for least, call in zip(best, calls, strict=True)]
    return calls[best.index(min(best))]


def product_shapes(model: nn.Module, image: Tensor) -> list[tuple[int, int, int]]:
    """Rows, numbers that are summed, and columns of the product of each linear layer and of each dense convolution."""
    shapes: list[tuple[int, int, int]] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Linear):
            shapes.append((output.numel() // module.out_features, module.in_features, module.out_features))
        elif isinstance(module, nn.Conv2d) and module.groups == 1:
            taps = module.weight[0].numel()
            shapes.append((output.numel() // module.out_channels, taps, module.out_channels))

    hooks = [module.register_forward_hook(record) for module in model.modules()]
    with torch.no_grad():
        model.eval()(image)
    for hook in hooks:
        hook.remove()
    return shapes


def build_autocast(name: str, size: tuple[int, int], batch: int, training: bool) -> Call:
    call = build_model(name, size, batch, training)
    device = torch.get_default_device().type

    def in_bfloat16() -> object:
        with torch.autocast(device, torch.bfloat16):
            return call()

    return in_bfloat16


def build_training(name: str) -> Call:
    """Forward pass, loss, backward pass and a step of AdamW."""
    model = BACKBONES[name](TRAINING_SIZE).train()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    images = torch.randn(TRAINING_BATCH, 3, TRAINING_SIZE, TRAINING_SIZE)
    labels = torch.randint(1000, (TRAINING_BATCH,))

    def step() -> None:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()

    return step


def draw(rows: list[Row], path: Path) -> None:
    """Time and memory by image size, for one image, in inference and in training."""
    figure = new_figure(9, 5.5)
    panels = figure.subplots(2, 2)
    for down, (column, label) in enumerate((("milliseconds", "time, ms"), ("peak_megabytes", "peak memory, MB"))):
        for across, (training, title) in enumerate(((False, "inference"), (True, "forward and backward pass"))):
            axis = panels[down, across]
            for style, name in zip(STYLES, BACKBONES, strict=False):
                of_one = [r for r in rows if r["name"] == name and r["batch"] == 1 and r["training"] == training]
                axis.plot([r["size"] for r in of_one], [r[column] for r in of_one], **style, markersize=5, label=name)
            axis.set_title(f"{title}, one image", fontsize=10)
            tidy(axis, x="image size, pixels", y=label)
            log_ticks(axis, IMAGE_SIZES)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    save(figure, path)


if __name__ == "__main__":
    main()
