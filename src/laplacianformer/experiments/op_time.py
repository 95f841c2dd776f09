"""Run time of the Laplacian kernel and of Newton-Schulz by size, on every backend that can run here.

The paper's figure: one image, two heads of 32 channels. The kernel is N x N; Newton-Schulz takes 6 steps on m x m
matrices. Rivals are the formulas in plain PyTorch, eager and under torch.compile, in interleaved rounds with ours, on a
GPU if there is one. For other libraries and the limit of the machine, at the sizes of the models, see
benchmarks/kernels.py.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer._util.measuring import Call, interleaved
from laplacianformer.experiments import rivals
from laplacianformer.experiments.drawing import STYLES, log_ticks, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "figure of the run times of the CUDA kernels"
CLAIM: str = (
    "The custom kernels are faster than PyTorch at every size, both the Laplacian kernel and Newton-Schulz, most of "
    "all in the backward pass."
)
HEADS, WIDTH, STEPS, EPS, SCALE = 2, 32, 6, 1e-2, 4.0
SIZES = {"laplacian_kernel": (64, 128, 256, 512, 1024, 2048), "newton_schulz": (16, 32, 49, 64, 128, 256)}
EAGER, COMPILED = "PyTorch", "torch.compile"
DIRECTIONS = ("forward", "forward and backward")
Op = Callable[[Tensor], Tensor]


PLAIN: dict[str, Op] = {
    "laplacian_kernel": lambda x: rivals.plain_kernel(x, x, SCALE),
    "newton_schulz": lambda w: rivals.plain_newton_schulz(w, STEPS, EPS),
}
OURS: dict[str, Op] = {
    "laplacian_kernel": lambda x: ops.laplacian_kernel(x, x, SCALE),
    "newton_schulz": lambda w: ops.newton_schulz(w, STEPS, EPS, start="identity"),
}


def run(settings: Settings) -> Outcome:
    rows = [row for op in SIZES for row in _measure(op, quick=settings.quick)]
    write_rows(settings.results / "times.csv", rows)
    _draw(rows, settings.results / "op-time.png")
    return judge(rows)


def _measure(op: str, *, quick: bool) -> list[Row]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[Row] = []
    for size in SIZES[op][:2] if quick else SIZES[op]:
        x = torch.randn(1, HEADS, size, WIDTH, device=device, generator=torch.Generator(device).manual_seed(size))
        given = ops.laplacian_kernel(x, x, 4 * SCALE) if op == "newton_schulz" else x
        methods: dict[str, tuple[Op, str | None]] = {  # a function, and the backend that it is forced to
            name: (OURS[op], name)
            for name, missing in ops.backends().items()
            if missing is None and name != "reference"
        }
        methods[EAGER] = PLAIN[op], None
        if not quick:  # compiling takes longer than everything else here
            methods[COMPILED] = rivals.compiled(PLAIN[op]), None
        for direction, make in zip(DIRECTIONS, (rivals.forward, rivals.forward_backward), strict=True):
            calls = {
                name: _on_backend(make(function, [given]), backend) for name, (function, backend) in methods.items()
            }
            found = interleaved(calls, 0.02 if quick else 0.5, rounds=3 if quick else 9, device=device)
            case: Row = {"op": op, "size": size, "direction": direction}
            rows += [
                case | {"method": name, "ms": float(f"{timed['median_ms']:.4g}")}
                for name, timed in found["times"].items()
            ]
    return rows


def _on_backend(call: Call, backend: str | None) -> Call:
    if backend is None:
        return call

    def forced() -> object:
        with ops.use_backend(backend):
            return call()

    return forced


def _speedups(rows: Sequence[Row], rival: str) -> Mapping[tuple[str, str], list[float]]:
    """By op and direction: the time of a rival over that of the fastest backend, one number per size."""
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
    eager = _speedups(rows, EAGER)
    if not eager:
        return Outcome("only plain PyTorch can run here.", "not confirmed at this scale")

    def said(found: Mapping[tuple[str, str], list[float]]) -> str:
        return ", ".join(
            f"{op} {direction} {min(times):.1f} to {max(times):.1f}" for (op, direction), times in found.items()
        )

    measured = f"times faster than plain PyTorch, over all sizes: {said(eager)}."
    if compiled := _speedups(rows, COMPILED):
        measured += f" Than torch.compile: {said(compiled)}."
    always = [min(times) > 1 for times in eager.values()]
    forward, both = DIRECTIONS
    more = [max(eager[op, both]) > max(eager[op, forward]) for op in SIZES]
    if all(always) and all(more):
        return Outcome(measured, "agrees")
    return Outcome(measured, "agrees in part" if any(always) else "disagrees")


def _draw(rows: Sequence[Row], path: Path) -> None:
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
