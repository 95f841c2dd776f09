"""The time of the Laplacian kernel and of Newton-Schulz by size, on every backend that runs here.

As in the paper: one image, two heads of 32 channels. The kernel is N x N; Newton-Schulz takes 6 steps on m x m. Rivals
are the formulas in plain PyTorch, eager and under torch.compile, timed in turn with ours. The same on a GPU, if any.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer._util.measuring import Call, interleaved
from laplacianformer.experiments.drawing import STYLES, log_ticks, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.plots.figure import new_figure, save

SOURCE = "figure of the execution times of the CUDA kernels"
CLAIM = (
    "The custom kernels are faster than PyTorch for every size, of the Laplacian kernel and of Newton-Schulz, most of "
    "all in the backward pass."
)
HEADS, WIDTH, STEPS, EPS, SCALE = 2, 32, 6, 1e-2, 4.0
SIZES = {"laplacian_kernel": (64, 128, 256, 512, 1024, 2048), "newton_schulz": (16, 32, 49, 64, 128, 256)}
EAGER, COMPILED = "PyTorch", "torch.compile"
DIRECTIONS = ("forward", "forward and backward")
Op = Callable[[Tensor], Tensor]


def plain_kernel(x: Tensor) -> Tensor:
    return (-(x[..., :, None, :] - x[..., None, :, :]).abs().sum(-1) / SCALE).exp()


def plain_newton_schulz(w: Tensor) -> Tensor:
    eye = torch.eye(w.shape[-1], device=w.device)
    a = w + EPS * eye
    x = 1.5 / a.abs().sum(-1).amax(-1)[..., None, None] * eye
    for _ in range(STEPS):
        x = x @ (2 * eye - a @ x)
    return x


PLAIN: dict[str, Op] = {"laplacian_kernel": plain_kernel, "newton_schulz": plain_newton_schulz}
OURS: dict[str, Op] = {
    "laplacian_kernel": lambda x: ops.laplacian_kernel(x, x, SCALE),
    "newton_schulz": lambda w: ops.newton_schulz(w, STEPS, EPS, start="identity"),
}


def run(settings: Settings) -> Outcome:
    rows = [row for op in SIZES for row in measure(op, quick=settings.quick)]
    write_rows(settings.results / "times.csv", rows)
    draw(rows, settings.results / "kernel-time.png")
    return judge(rows)


def measure(op: str, *, quick: bool) -> list[Row]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fast = [name for name, missing in ops.backends().items() if missing is None and name != "reference"]
    rivals: dict[str, Op] = {EAGER: PLAIN[op]}
    if not quick:  # a graph takes longer to compile than everything else here
        rivals[COMPILED] = torch.compile(PLAIN[op], dynamic=False)
    rows: list[Row] = []
    for size in SIZES[op][:2] if quick else SIZES[op]:
        torch._dynamo.reset()  # after a number of compilations it would run the plain form instead
        x = torch.randn(1, HEADS, size, WIDTH, device=device, generator=torch.Generator(device).manual_seed(size))
        given = ops.laplacian_kernel(x, x, 4 * SCALE) if op == "newton_schulz" else x
        calls: dict[str, dict[str, Call]] = {direction: {} for direction in DIRECTIONS}
        for name in (*fast, *rivals):
            for direction, call in zip(DIRECTIONS, passes(rivals.get(name, OURS[op]), given), strict=True):
                calls[direction][name] = call if name in rivals else on_backend(call, name)
        for direction, functions in calls.items():
            found = interleaved(functions, 0.02 if quick else 0.5, rounds=3 if quick else 9, device=device)
            rows += [
                {
                    "op": op,
                    "size": size,
                    "direction": direction,
                    "method": name,
                    "ms": float(f"{timed['median_ms']:.4g}"),
                }
                for name, timed in found["times"].items()
            ]
    return rows


def on_backend(call: Call, backend: str) -> Call:
    def forced() -> object:
        with ops.use_backend(backend):
            return call()

    return forced


def passes(function: Op, given: Tensor) -> tuple[Call, Call]:
    """A forward pass alone, and one with its backward pass."""
    leaf = given.detach().requires_grad_()
    with torch.no_grad():
        ones = torch.ones_like(function(given))

    def forward() -> object:
        with torch.no_grad():
            return function(given)

    return forward, lambda: torch.autograd.grad(function(leaf), leaf, ones)


def speedups(rows: Sequence[Row], rival: str) -> Mapping[tuple[str, str], list[float]]:
    """By op and direction: the time of a rival over that of the fastest backend, size by size."""
    cases: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        cases.setdefault((row["op"], row["direction"], row["size"]), {})[row["method"]] = row["ms"]
    found: dict[tuple[str, str], list[float]] = {}
    for (op, direction, _), times in cases.items():
        ours = [ms for name, ms in times.items() if name not in (EAGER, COMPILED)]
        if ours and rival in times:
            found.setdefault((op, direction), []).append(times[rival] / min(ours))
    return found


def judge(rows: Sequence[Row]) -> Outcome:
    eager = speedups(rows, EAGER)
    if not eager:
        return Outcome("no backend but plain PyTorch can run here.", "not confirmed at this scale")

    def said(found: Mapping[tuple[str, str], list[float]]) -> str:
        return ", ".join(
            f"{op} {direction} {min(times):.1f} to {max(times):.1f}" for (op, direction), times in found.items()
        )

    measured = f"times faster than plain PyTorch, over all sizes: {said(eager)}."
    if compiled := speedups(rows, COMPILED):
        measured += f" Than torch.compile: {said(compiled)}."
    always = [min(times) > 1 for times in eager.values()]
    forward, both = DIRECTIONS
    more = [max(eager[op, both]) > max(eager[op, forward]) for op in SIZES]
    if all(always) and all(more):
        return Outcome(measured, "agrees")
    return Outcome(measured, "agrees in part" if any(always) else "disagrees")


def draw(rows: Sequence[Row], path: Path) -> None:
    drawn = new_figure(9, 5.2)
    panels = drawn.subplots(2, len(SIZES))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for line, direction in zip(panels, DIRECTIONS, strict=True):
        for axis, op in zip(line, SIZES, strict=True):
            for style, method in zip(STYLES, methods, strict=False):
                case = {"op": op, "direction": direction, "method": method}
                found = [(row["size"], row["ms"]) for row in rows if case.items() <= row.items()]
                axis.plot(*zip(*found, strict=True), **style, markersize=5, label=method)
            log_ticks(axis, (row["size"] for row in rows if row["op"] == op))
            axis.set_title(f"{op}, {direction}", fontsize=10)
            tidy(axis, x="m, of m x m" if op == "newton_schulz" else "N, of N x N", y="time, ms")
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    save(drawn, path)
