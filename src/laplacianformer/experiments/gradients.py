"""The norm of the gradient of both kernels by the distance between the two points, with the ops of this package."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer.experiments.drawing import STYLES, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "appendix, gradient behaviour"
CLAIM: str = (
    "As two points approach each other, the gradient of the Gaussian kernel goes to zero linearly with their distance; "
    "that of the Laplacian kernel stays of the order of sqrt(d) / lambda."
)
SCALE = 4.0
WIDTHS = (1, 32, 256)
KERNELS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "laplacian": ops.laplacian_kernel,
    "gaussian": ops.gaussian_kernel,
}


def run(settings: Settings) -> Outcome:
    rows = measure(directions=3 if settings.quick else 100)
    write_rows(settings.results / "lengths.csv", rows)
    _draw(rows, settings.results / "gradients.png")
    return judge(rows)


def measure(directions: int) -> list[Row]:
    """The norm of the gradient, averaged over random directions, in float64."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for width in WIDTHS:
        direction = torch.randn(directions, 1, width, generator=generator, dtype=torch.float64)
        direction /= direction.norm(dim=-1, keepdim=True)
        for distance in torch.logspace(-6, 2, 65, dtype=torch.float64).tolist():
            for name, kernel in KERNELS.items():
                x = (distance * direction).requires_grad_()
                (gradient,) = torch.autograd.grad(kernel(x, torch.zeros_like(x), SCALE).sum(), x)
                length = float(gradient.norm(dim=-1).mean())
                rows.append({"kernel": name, "width": width, "distance": distance, "length": length})
    return rows


def _slope(rows: Sequence[Row], kernel: str, width: int) -> float:
    """d log(norm) / d log(distance) between the two smallest distances."""
    first, second = [row for row in rows if (row["kernel"], row["width"]) == (kernel, width)][:2]
    return math.log(second["length"] / first["length"]) / math.log(second["distance"] / first["distance"])


def judge(rows: Sequence[Row]) -> Outcome:
    slopes = {kernel: [_slope(rows, kernel, width) for width in WIDTHS] for kernel in KERNELS}
    limits = [
        next(row["length"] for row in rows if (row["kernel"], row["width"]) == ("laplacian", width))
        / (math.sqrt(width) / SCALE)
        for width in WIDTHS
    ]

    def listed(values: Sequence[float]) -> str:
        return ", ".join(f"{round(value, 4) + 0.0:.4f}" for value in values)  # no -0

    measured = (
        f"for d = {', '.join(map(str, WIDTHS))} and points 1e-6 apart, the exponent of the gradient in the distance is "
        f"{listed(slopes['gaussian'])} for the Gaussian kernel and {listed(slopes['laplacian'])} for the Laplacian, "
        f"whose gradient is {listed(limits)} times sqrt(d) / lambda. Where the points are equal, both are 0."
    )
    agrees = (
        all(abs(value - 1) < 1e-3 for value in slopes["gaussian"])
        and all(abs(value) < 1e-3 for value in slopes["laplacian"])
        and all(abs(value - 1) < 1e-3 for value in limits)
    )
    return Outcome(measured, "agrees" if agrees else "disagrees")


def _draw(rows: Sequence[Row], path: Path) -> None:
    drawn = new_figure(9, 3.2)
    for axis, width in zip(drawn.subplots(1, len(WIDTHS), sharex=True, sharey=True), WIDTHS, strict=True):
        for style, kernel in zip(STYLES, KERNELS, strict=False):
            line = [
                (row["distance"], row["length"]) for row in rows if (row["kernel"], row["width"]) == (kernel, width)
            ]
            axis.plot(*zip(*line, strict=True), **style, label=kernel, markevery=8, markersize=4)
        axis.axhline(math.sqrt(width) / SCALE, color="#888888", linewidth=0.8, linestyle=":", label="sqrt(d) / lambda")
        axis.set(xscale="log", yscale="log", ylim=(1e-8, 30))
        axis.set_title(f"d = {width}", fontsize=10)
        tidy(axis, x="distance of the two points, |x - y|$_2$", y="norm of the gradient")
        axis.label_outer()
    drawn.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(drawn, path)
