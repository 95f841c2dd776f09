"""The speed of the kernels: against other ways to compute the same, and against the machine's limit.

    python benchmarks/kernels.py [--quick] [--device cuda] [--output results/kernel-speed]

Rivals beside torch are measured where they are installed: pip install scikit-learn pykeops.

Everything of one line of the table is timed in turn, in one run, and given as ratios: numbers of
different runs on shared machines don't compare. The limit is a register-only loop of subtract, absolute
value, add on the same instruction set and threads, timed in the same turns; it exists in two forms, with a
plain subtraction and with a fused multiply-subtract (faster where multiply-add has units of its own), and
shares are given of the faster one ("share") and of the plain one ("share_plain"). Ratios are of medians, and
in brackets of fastest times, which others' work on the machine disturbs less. Memory that is freed is kept, so that
nobody's time is that of asking the system for it. There is no limit measured on GPUs.
"""

import argparse
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import interleaved, keep_freed_memory, quotient
from torch import Tensor

from laplacianformer import ops
from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.drawing import STYLES, log_ticks, tidy
from laplacianformer.ops import cpu_extension
from laplacianformer.plots.figure import new_figure, save

RESULTS = Path(__file__).parent.parent / "results" / "kernel-speed"
SCALE = 4.0
BACKENDS = {"cpu": "cpu", "cuda": "triton"}
RIVALS = {"compile": "torch.compile", "cdist": "torch.cdist", "sklearn": "scikit-learn", "keops": "KeOps"}
ROUNDS = 20_000
BASE = {"batch": 8, "n": 3136, "m": 49, "d": 32}
LENGTHS = (49, 784, 3136, 12544, 50176)
WHAT = ("kernel", "product", "reduction")


def broadcast_kernel(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp((x[:, :, None] - y[:, None]).abs().sum(-1) / -SCALE)


def broadcast_product(x: Tensor, y: Tensor, values: Tensor) -> Tensor:
    return broadcast_kernel(x, y) @ values


def cdist_kernel(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x, y, p=1.0).div(-SCALE).exp()


def ours_kernel(x: Tensor, y: Tensor) -> Tensor:
    return ops.laplacian_kernel(x, y, SCALE, backend=BACKENDS[x.device.type])


def ours_product(x: Tensor, y: Tensor, values: Tensor) -> Tensor:
    return ops.laplacian_matmul(x, y, values, SCALE, backend=BACKENDS[x.device.type])


def cdist_product(x: Tensor, y: Tensor, values: Tensor) -> Tensor:
    return cdist_kernel(x, y) @ values


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def sklearn_kernel() -> Callable[[Tensor, Tensor], object] | None:
    try:
        from sklearn.metrics.pairwise import laplacian_kernel
    except ImportError:
        return None
    return lambda x, y: [
        laplacian_kernel(a, b, gamma=1 / SCALE) for a, b in zip(x.detach().numpy(), y.detach().numpy(), strict=True)
    ]


def keops_product() -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    try:
        from pykeops.torch import LazyTensor
    except ImportError:
        return None

    def product(x: Tensor, y: Tensor, values: Tensor) -> Tensor:
        distance = (LazyTensor(x[:, :, None].contiguous()) - LazyTensor(y[:, None].contiguous())).abs().sum(-1)
        return (-distance / SCALE).exp() @ values

    return product


def forward(function: Callable[..., Any], inputs: list[Tensor]) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad():
            return function(*inputs)

    return call


def forward_backward(function: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], object]:
    leaves = [t.clone().requires_grad_() for t in inputs]
    with torch.no_grad():
        grad = torch.randn_like(function(*inputs))
    return lambda: torch.autograd.grad(function(*leaves), leaves, grad)


PHASES: dict[str, Callable[[Callable[..., Any], list[Tensor]], Callable[[], object]]] = {
    "forward": forward,
    "forward_backward": forward_backward,
}


def limit(fused: bool) -> Callable[[], object]:
    level = cpu_extension.level()
    return lambda: torch.ops.laplacianformer_cpu.peak(ROUNDS, fused, level)


def peak_elements() -> int:
    elements: int = torch.ops.laplacianformer_cpu.peak(1, False, cpu_extension.level())
    return elements * ROUNDS


def with_shares(row: dict[str, Any], elements: int) -> dict[str, Any]:
    """Adds, to a row whose times hold the limit and `ours`, the ratios to the rivals and the shares of the limit.

    Medians of the ratios of each round, and the ratios of the fastest times.
    """
    each, times = row.pop("each"), row["times"]
    ratios = {
        "": {name: quotient(each, name, "ours") for name in times if name != "ours"},
        "_fastest": {n: t["fastest_ms"] / times["ours"]["fastest_ms"] for n, t in times.items() if n != "ours"},
    }
    for suffix, found in ratios.items():
        # The time of the limit for as many elements.
        limits = [found.pop(n) / peak_elements() * elements for n in ("limit_plain", "limit_fused") if n in found]
        row[f"ratio{suffix}"] = found
        if limits:
            row[f"share{suffix}"], row[f"share_plain{suffix}"] = min(limits), limits[0]
    return row


def given(case: dict[str, int], what: str, device: str) -> list[Tensor]:
    """Inputs of kernel and product (queries against landmarks) or reduction (landmarks against keys)."""
    batch, n, m, d = (case[key] for key in ("batch", "n", "m", "d"))
    x, y = (torch.randn(batch, rows, d, device=device) * 0.5 for rows in (n, m))
    if what == "reduction":
        x, y = y, x
    return [x, y] if what == "kernel" else [x, y, torch.randn(batch, y.shape[1], 32, device=device)]


def ours(what: str) -> Callable[..., Tensor]:
    return ours_kernel if what == "kernel" else ours_product


def limits(device: str) -> dict[str, Callable[[], object]]:
    return {"limit_plain": limit(False), "limit_fused": limit(True)} if device == "cpu" else {}


def size_of(case: dict[str, int]) -> int:
    return case["batch"] * case["n"] * case["m"] * case["d"]


def measure(case: dict[str, int], what: str, rivals: bool, seconds: float, device: str) -> dict[str, Any]:
    """One line, against rivals or the limit alone."""
    one = what == "kernel"
    functions: dict[str, Callable[..., Any] | None] = {"ours": ours(what)}
    if rivals:
        functions["compile"] = compiled(broadcast_kernel if one else broadcast_product)
        functions["cdist"] = cdist_kernel if one else cdist_product
        functions |= {"sklearn": sklearn_kernel() if device == "cpu" else None} if one else {"keops": keops_product()}
    available = {name: f for name, f in functions.items() if f is not None}
    row: dict[str, Any] = dict(case) | {"what": what, "threads": torch.get_num_threads(), "scaling": False}
    inputs = given(case, what, device)
    for phase, make in PHASES.items():
        calls = {k: make(f, inputs) for k, f in available.items() if (k, phase) != ("sklearn", "forward_backward")}
        timed = interleaved(calls | limits(device), seconds, device=device)
        row[phase] = with_shares(timed, size_of(case))
    return row


def measure_growth(what: str, seconds: float, device: str) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """A line for each N, all of them in turn, and the log-log slopes of time against N from 3136 on."""
    lines = [BASE | {"n": n} for n in LENGTHS]
    rows: list[dict[str, Any]] = [
        dict(line) | {"what": what, "threads": torch.get_num_threads(), "scaling": True} for line in lines
    ]
    slopes = {}
    for phase, make in PHASES.items():
        calls = {str(line["n"]): make(ours(what), given(line, what, device)) for line in lines}
        timed = interleaved(calls | limits(device), seconds, device=device)
        for line, row in zip(lines, rows, strict=True):
            names = {str(line["n"]): "ours"} | {name: name for name in limits(device)}
            own = {key: {new: timed[key][old] for old, new in names.items()} for key in ("times", "each")}
            row[phase] = with_shares(own | {"cpu_over_wall": timed["cpu_over_wall"]}, size_of(line))
        ratio, growth = quotient(timed["each"], str(LENGTHS[-1]), str(BASE["n"])), LENGTHS[-1] / BASE["n"]
        slopes[f"{what} {phase}"] = math.log(ratio) / math.log(growth)
    return rows, slopes


def cases(quick: bool) -> list[tuple[dict[str, int], str, bool, int]]:
    """(shape, what, with rivals, threads)."""
    threads = torch.get_num_threads()
    result = [(BASE | {"d": d}, what, True, threads) for d in (32, 64) for what in WHAT]
    if quick:
        return result
    result += [(BASE | {"d": d}, "kernel", True, 1) for d in (32, 64)]
    return result + [(BASE | {"m": m}, "kernel", False, threads) for m in (1, 16, 196, 1024)]


def show(row: dict[str, Any]) -> None:
    shape = f"B*H={row['batch']} N={row['n']} M={row['m']} d={row['d']} threads={row['threads']}"
    for phase in ("forward", "forward_backward"):
        part = row[phase]
        ratios = "  ".join(
            f"{name} {ratio:.1f}x ({part['ratio_fastest'][name]:.1f}x)" for name, ratio in part["ratio"].items()
        )
        share = ""
        if "share" in part:
            share = (
                f"{part['share']:.0%} ({part['share_fastest']:.0%}) of the limit, {part['share_plain']:.0%} of plain"
            )
        time = part["times"]["ours"]["median_ms"]
        busy = part["cpu_over_wall"]
        print(
            f"{row['what']:9} {shape:44} {phase:16} {time:8.2f} ms  {share}  {ratios}  cpu/wall {busy:.2f}", flush=True
        )


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """How many times longer the others take, and how time grows with N."""
    scaling = [row for row in rows if row["scaling"]]
    figure = new_figure(12 if scaling else 7, 6)
    axes = figure.subplots(1, 2 if scaling else 1, squeeze=False, width_ratios=[5, 4] if scaling else None)
    draw_rivals(axes[0, 0], [row for row in rows if row["forward"]["ratio"]])
    if scaling:
        draw_scaling(axes[0, 1], scaling)
    save(figure, path)


def draw_rivals(axis: Any, rows: list[dict[str, Any]]) -> None:
    lines = [(row, phase) for row in rows for phase in ("forward", "forward_backward")]
    for style, (rival, label) in zip(STYLES[1:], RIVALS.items(), strict=False):
        points = [
            (row[phase]["ratio"][rival], -y) for y, (row, phase) in enumerate(lines) if rival in row[phase]["ratio"]
        ]
        if points:
            axis.plot(*zip(*points, strict=True), **style | {"linestyle": ""}, label=label)
    axis.axvline(1, color="#333333", linewidth=1)
    axis.set_title("B * H = 8, N = 3136, M = 49, float32", fontsize=10)
    tidy(axis, x="time over that of this package", y="")
    ticks = (1, 2, 5, 10, 20, 50)
    axis.set_xscale("log")
    axis.set_xticks(ticks, map(str, ticks))
    axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    labels = [
        f"{row['what']}, width {row['d']}, threads {row['threads']}, {phase.replace('_', ' + ')}"
        for row, phase in lines
    ]
    axis.set_yticks([-y for y in range(len(lines))], labels, fontsize=8)
    axis.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=4, frameon=False)


def draw_scaling(axis: Any, rows: list[dict[str, Any]]) -> None:
    lines = [(what, phase) for what in WHAT for phase in PHASES]
    for style, (what, phase) in zip(STYLES, lines, strict=True):
        points = sorted((row["n"], row[phase]["times"]["ours"]["median_ms"]) for row in rows if row["what"] == what)
        axis.plot(*zip(*points, strict=True), **style, markersize=5, label=f"{what}, {phase.replace('_', ' + ')}")
    axis.set_title("this package by N, M = 49, width 32", fontsize=10)
    tidy(axis, x="N", y="ms")
    log_ticks(axis, LENGTHS)
    axis.tick_params(axis="x", rotation=45)
    axis.legend(fontsize=8, loc="upper left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON and the plot")
    parser.add_argument("--device", choices=BACKENDS, default="cpu", help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="only the six lines with rivals, on all threads")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each measured function")
    arguments = parser.parse_args()
    name = BACKENDS[arguments.device]
    if (reason := ops.backends()[name]) is not None:
        parser.exit(1, f"The {name} backend can't run: {reason}\n")
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    keep_freed_memory()
    environment = provenance(arguments.device)
    if arguments.device == "cpu":
        environment["level"] = cpu_extension.LEVELS[cpu_extension.level()]
    print(environment)
    threads, rows = torch.get_num_threads(), []
    for case, what, rivals, count in cases(arguments.quick):
        torch.set_num_threads(count)
        rows.append(measure(case, what, rivals, arguments.seconds, arguments.device))
        show(rows[-1])
    torch.set_num_threads(threads)
    slopes: dict[str, float] = {}
    for what in () if arguments.quick else WHAT:
        lines, found = measure_growth(what, arguments.seconds, arguments.device)
        for line in lines:
            show(line)
        rows += lines
        slopes |= found
    result = {"environment": environment, "rows": rows, "slopes": slopes}
    print("slopes", slopes)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "kernels.json").write_text(json.dumps(result, indent=2) + "\n")
    plot(rows, arguments.output / "kernels.png")


if __name__ == "__main__":
    main()
