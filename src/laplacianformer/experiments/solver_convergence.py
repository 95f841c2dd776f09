"""Newton-Schulz and conjugate gradients by number of steps, for matrices with a given condition number.

The paper's two measures: |X_k - inv(W)|_F / |inv(W)|_F for Newton-Schulz, |x_k - x|_2 / |x|_2 for conjugate gradients.
W is 49 x 49 and symmetric, with a random basis and eigenvalues evenly spaced on a logarithmic scale from 1/condition to
1; `kernel` is the Laplacian kernel among random landmarks, with ones on its diagonal, as in the model. All in float64.
"""

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

SOURCE: str = "figure of solver convergence (ablations)"
CLAIM: str = (
    "Conjugate gradients converge faster for well-conditioned matrices (condition number 2) and degrade as the "
    "condition number grows; Newton-Schulz has a warm-up phase and then converges stably, also at 50."
)
SIZE = 49
CONDITIONS = (2.0, 10.0, 50.0, 1e3, 1e6)
ACCURATE = 1e-6


def run(settings: Settings) -> Outcome:
    seeds, steps = (1, 24) if settings.quick else (5, 60)
    rows = [row for seed in range(seeds) for row in measure(seed, steps)]
    write_rows(settings.results / "errors.csv", rows)
    _draw(rows, settings.results / "solver-convergence.png")
    return judge(rows)


def measure(seed: int, steps: int) -> list[Row]:
    generator = torch.Generator().manual_seed(seed)
    matrices = {f"{condition:g}": _with_condition(condition, generator) for condition in CONDITIONS}
    points = torch.randn(SIZE, 32, generator=generator, dtype=torch.float64)
    matrices["kernel"] = ops.laplacian_kernel(points, points, scale=16.0)
    return [
        {"matrix": name, "method": method, "seed": seed, "step": step, "error": float(f"{error(w, step):.6g}")}
        for name, w in matrices.items()
        for method, error in METHODS.items()
        for step in range(1, steps + 1)
    ]


def _with_condition(condition: float, generator: torch.Generator) -> Tensor:
    basis, _ = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))
    return basis * torch.logspace(-math.log10(condition), 0, SIZE, dtype=torch.float64) @ basis.mT


def _inverse_error(w: Tensor, approximation: Tensor) -> float:
    exact = torch.linalg.inv(w)
    return float((approximation - exact).norm() / exact.norm())


def _solution_error(w: Tensor, steps: int) -> float:
    exact = torch.ones(len(w), 1, dtype=w.dtype)
    return float((ops.conjugate_gradient(w, w @ exact, steps, 0.0) - exact).norm() / exact.norm())


def _from_the_papers_start(w: Tensor, steps: int) -> Tensor:
    """X0 = (2 / norm2(W)) W'."""
    x, twice = 2 / torch.linalg.matrix_norm(w, 2) * w.mT, 2 * torch.eye(len(w), dtype=w.dtype)
    for _ in range(steps):
        x = x @ (twice - w @ x)
    return x


METHODS: dict[str, Callable[[Tensor, int], float]] = {
    "Newton-Schulz, identity start": lambda w, k: _inverse_error(w, ops.newton_schulz(w, k, 0.0, start="identity")),
    "Newton-Schulz, transpose start": lambda w, k: _inverse_error(w, ops.newton_schulz(w, k, 0.0, start="transpose")),
    "Newton-Schulz, the paper's start": lambda w, k: _inverse_error(w, _from_the_papers_start(w, k)),
    "conjugate gradients": _solution_error,
}


def steps_needed(rows: Sequence[Row], matrix: str, method: str) -> float:
    """The number of steps to an accurate result, averaged over seeds; infinite if one seed never gets there."""
    first: dict[int, float] = {}
    for row in rows:
        if row["matrix"] == matrix and row["method"] == method:
            first.setdefault(row["seed"], math.inf)
            if row["error"] <= ACCURATE:
                first[row["seed"]] = min(first[row["seed"]], row["step"])
    return sum(first.values()) / len(first)


def judge(rows: Sequence[Row]) -> Outcome:
    ours, papers, gradients = (
        {matrix: steps_needed(rows, matrix, method) for matrix in ("2", "50", "kernel")}
        for method in ("Newton-Schulz, identity start", "Newton-Schulz, the paper's start", "conjugate gradients")
    )

    def said(needed: dict[str, float]) -> str:
        return ", ".join("never" if math.isinf(steps) else f"{steps:.1f}" for steps in needed.values())

    measured = (
        f"steps to a relative error of {ACCURATE:g} at condition number 2, at 50, and for a kernel matrix: conjugate "
        f"gradients {said(gradients)}; Newton-Schulz from the identity {said(ours)}; from the paper's start "
        f"{said(papers)}. Conjugate gradients degrade more with the condition number, but already at 2 they need more "
        "steps; each of their steps is cheaper: m^2 multiply-adds per column instead of 2 m^3."
    )
    parts = gradients["2"] < ours["2"], gradients["50"] / gradients["2"] > ours["50"] / ours["2"]
    return Outcome(measured, "agrees" if all(parts) else "agrees in part" if any(parts) else "disagrees")


def _draw(rows: Sequence[Row], path: Path) -> None:
    """One panel per matrix, for the first seed."""
    matrices = list(dict.fromkeys(row["matrix"] for row in rows))
    drawn = new_figure(9, 5)
    for axis, matrix in zip(drawn.subplots(2, 3, sharex=True, sharey=True).flat, matrices, strict=True):
        for style, method in zip(STYLES, METHODS, strict=False):
            line = [
                (row["step"], min(max(row["error"], 1e-17), 1e4))
                for row in rows
                if (row["matrix"], row["method"], row["seed"]) == (matrix, method, 0) and math.isfinite(row["error"])
            ]
            axis.plot(*zip(*line, strict=True), **style, label=method, markevery=4, markersize=4)
        axis.set_yscale("log")
        axis.set_ylim(1e-16, 1e3)
        axis.set_title("kernel of landmarks" if matrix == "kernel" else f"condition number {matrix}", fontsize=10)
        tidy(axis, x="step", y="relative error")
        axis.label_outer()
    drawn.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save(drawn, path)
