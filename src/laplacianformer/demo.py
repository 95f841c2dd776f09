"""A picture of what one attention layer does, with no training: a generated image and the attention of a few tokens.

The layer ties queries to keys and leaves positions out, so that tokens of like colour attend to each other.
"""

from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from laplacianformer.attention import LaplacianAttention

SIDE = 128
PATCH = 4
POINTS = ((40, 36), (84, 92), (16, 112))  # row and column of the queries: a disc, a square, the background


def run(output: Path) -> None:
    image = generated_image()
    layer, tokens, size = attention_on(image)
    factors = layer.factors(tokens, size, dense=True)
    assert factors.dense is not None
    panels = []
    for point in POINTS:
        place = (point[0] // PATCH) * size[1] + point[1] // PATCH
        kernel = factors.c[0, :, place].mean(0).unflatten(0, layer.cells(size))
        panels.append((point, kernel, factors.dense[0, :, place].mean(0).unflatten(0, size)))
    output.mkdir(parents=True, exist_ok=True)
    path = output / "attention.png"
    draw(image, panels, path)
    Console().print(f"{size[0] * size[1]} tokens, {panels[0][1].numel()} landmarks. Picture: [bold]{path}[/bold]")


def generated_image() -> Tensor:
    """(3, SIDE, SIDE): two discs of one colour, two squares of another, on a shaded background."""
    rows, columns = torch.meshgrid(torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE), indexing="ij")
    image = torch.stack([0.15 + 0.2 * rows, 0.2 + 0.2 * columns, 0.35 + 0.2 * rows])
    for y, x, radius in ((0.31, 0.28, 0.17), (0.75, 0.25, 0.11)):
        image[:, (rows - y) ** 2 + (columns - x) ** 2 < radius**2] = torch.tensor([0.95, 0.75, 0.2])[:, None]
    for y, x, half in ((0.66, 0.72, 0.16), (0.22, 0.66, 0.09)):
        image[:, ((rows - y).abs() < half) & ((columns - x).abs() < half)] = torch.tensor([0.8, 0.25, 0.3])[:, None]
    return image


def attention_on(image: Tensor) -> tuple[LaplacianAttention, Tensor, tuple[int, int]]:
    """A layer with fixed random weights, and the image's patches as its tokens."""
    torch.manual_seed(0)
    layer = LaplacianAttention(64, 2, scale=2.0, grid=14, tied=True, rope=False, whitening="instance").eval()
    patches = image.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).mean((3, 4))
    tokens = (patches.flatten(1).T - patches.mean()) @ torch.randn(3, 64) * 2
    return layer, tokens[None], (patches.shape[1], patches.shape[2])


def draw(image: Tensor, panels: list[tuple[tuple[int, int], Tensor, Tensor]], path: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("the demo draws with matplotlib: pip install 'laplacianformer[plot]'") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, len(panels), figsize=(3 * len(panels), 9.4), layout="constrained")
    for column, (point, kernel, weights) in enumerate(panels):
        top, middle, bottom = axes[:, column]
        top.imshow(image.permute(1, 2, 0).numpy())
        top.plot(point[1], point[0], "o", color="white", markeredgecolor="black", markersize=10)
        top.set_title(f"query {column + 1}")
        kernels = middle.imshow(kernel.numpy(), cmap="viridis", vmin=0)
        middle.set_title("kernel with the landmarks")
        bound = weights.abs().max().item()
        attention = bottom.imshow(weights.numpy(), cmap="RdBu_r", vmin=-bound, vmax=bound)
        bottom.set_title("attention to every token")
        figure.colorbar(kernels, ax=middle, shrink=0.8)
        figure.colorbar(attention, ax=bottom, shrink=0.8)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
