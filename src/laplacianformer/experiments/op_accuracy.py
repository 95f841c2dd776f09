"""The error of every backend of the ops against float64, by dtype and size, forward and backward.

The error is |found - exact|_F / |exact|_F. Exact is the reference in float64 on inputs that were rounded to the dtype
before: the rounding of inputs is not counted. Sizes are N for the kernels (N x 49, width 32) and m for Newton-Schulz.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer.experiments.drawing import STYLES, log_ticks, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "appendix, numerical accuracy of the kernels"
CLAIM: str = "The custom kernels, forward and backward, are as accurate as the same formulas in PyTorch."
SCALE, LANDMARKS, WIDTH = 4.0, 49, 32
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Op = Callable[..., Tensor]
OPS: dict[str, tuple[Op, tuple[int, ...]]] = {
    "laplacian_kernel": (lambda x, y: ops.laplacian_kernel(x, y, SCALE), (64, 512, 4096)),
    "laplacian_matmul": (lambda x, y, v: ops.laplacian_matmul(x, y, v, SCALE), (64, 512, 4096)),
    "newton_schulz": (lambda w: ops.newton_schulz(w, 6, 1e-2, start="identity"), (16, 49, 196)),
}


def run(settings: Settings) -> Outcome:
    rows = list(_measure(quick=settings.quick))
    write_rows(settings.results / "errors.csv", rows)
    _draw(rows, settings.results / "op-accuracy.png")
    return judge(rows)


def _measure(*, quick: bool) -> Iterator[Row]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, (op, sizes) in OPS.items():
        for size in sizes[:1] if quick else sizes:
            for dtype in DTYPES:
                inputs = [part.to(device, dtype) for part in _points(name, size)]
                with ops.use_backend("reference"):
                    exact = _forward_and_backward(op, [part.double() for part in inputs])
                for backend in _usable(op, inputs):
                    with ops.use_backend(backend):
                        found = _forward_and_backward(op, inputs)
                    for direction, mine, wanted in zip(("forward", "backward"), found, exact, strict=True):
                        error = float((mine.double() - wanted).norm() / wanted.norm())
                        row: Row = {"op": name, "size": size, "dtype": str(dtype).removeprefix("torch.")}
                        yield row | {"backend": backend, "direction": direction, "error": float(f"{error:.4g}")}


def _points(op: str, size: int) -> list[Tensor]:
    """Queries, landmarks and values of two heads; for the solver, the kernel among landmarks."""
    generator = torch.Generator().manual_seed(size)
    x, y, v = (torch.randn(2, count, WIDTH, generator=generator) for count in (size, LANDMARKS, LANDMARKS))
    if op == "newton_schulz":
        return [ops.laplacian_kernel(x, x, 4 * SCALE)]
    return [x, y] if op == "laplacian_kernel" else [x, y, v]


def _usable(op: Op, inputs: Sequence[Tensor]) -> list[str]:
    """The backends that can run on these inputs."""
    found = []
    for backend, missing in ops.backends().items():
        if missing is None:
            try:
                with ops.use_backend(backend):
                    op(*inputs)
            except (RuntimeError, ValueError):  # says in words why it can't
                continue
            found.append(backend)
    return found


def _forward_and_backward(op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The result, and the gradients of its weighted sum as one vector."""
    leaves = [part.detach().clone().requires_grad_() for part in inputs]
    out = op(*leaves)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    gradients = torch.autograd.grad((out * weights).sum(), leaves)
    return out.detach(), torch.cat([gradient.flatten().double() for gradient in gradients])


def judge(rows: Sequence[Row]) -> Outcome:
    fast = [row for row in rows if row["backend"] != "reference"]
    if not fast:
        return Outcome("only plain PyTorch can run here.", "not confirmed at this scale")
    cases = ("op", "size", "dtype", "direction")
    plain = {tuple(row[key] for key in cases): row["error"] for row in rows if row["backend"] == "reference"}

    def ratio(row: Row) -> float:
        return row["error"] / max(plain[tuple(row[key] for key in cases)], 1e-300)

    largest = max(fast, key=ratio)
    listed = ", ".join(
        f"{max(row['error'] for row in fast if row['dtype'] == dtype):.1e} ({dtype})"
        for dtype in dict.fromkeys(row["dtype"] for row in fast)
    )
    measured = (
        f"largest relative error of a fast backend: {listed}. Against plain PyTorch in the same dtype, its error is at "
        f"most {ratio(largest):.2f} times as large ({largest['backend']}, {largest['op']}, {largest['direction']}, "
        f"{largest['dtype']}, size {largest['size']})."
    )
    worst = ratio(largest)  # a factor of 10 is one decimal digit
    return Outcome(measured, "agrees" if worst <= 2 else "agrees in part" if worst < 10 else "disagrees")


def _draw(rows: Sequence[Row], path: Path) -> None:
    """One panel per op and direction, one line per dtype and backend."""
    drawn = new_figure(9, 5.2)
    panels = drawn.subplots(2, len(OPS), sharey=True, squeeze=False)
    lines = list(dict.fromkeys((row["dtype"], row["backend"]) for row in rows))
    for line, direction in zip(panels, ("forward", "backward"), strict=True):
        for axis, op in zip(line, OPS, strict=True):
            for style, (dtype, backend) in zip(STYLES, lines, strict=False):
                case = {"op": op, "direction": direction, "dtype": dtype, "backend": backend}
                found = [(row["size"], row["error"]) for row in rows if case.items() <= row.items()]
                if found:
                    axis.plot(*zip(*found, strict=True), **style, markersize=5, label=f"{dtype}, {backend}")
            log_ticks(axis, (row["size"] for row in rows if row["op"] == op))
            axis.set_title(f"{op}, {direction}", fontsize=10)
            tidy(axis, x="m" if op == "newton_schulz" else "rows N", y="relative error")
            axis.label_outer()
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(drawn, path)
