"""Speed of the kernels at the sizes of the models: against other libraries, and against the limit of the machine.

    python benchmarks/kernels.py             writes results/benchmarks/kernels/kernels.csv and kernels.png
    python benchmarks/kernels.py --quick     only the lines with rivals, to compare two versions of the package

This is the benchmark of a release. The paper's figure of run time against size, on every backend, is the experiment
`laplacianformer reproduce op-time`. Rivals other than torch are measured if they are installed:
pip install scikit-learn pykeops.

All methods of one line are timed in interleaved rounds of one run and compared by ratios: times of different runs on
shared machines can't be compared. The limit is a register-only loop with the same instruction set and threads, timed in
the same rounds. Of distances: subtract, absolute value and add. Of their gradient: compare, and where the comparison
holds add the weight of the pair to two sums; three instructions with AVX-512 and four elsewhere, the least that we know
of, and without a test for equal numbers, whose gradient is 0. The forward pass is compared with the first, the backward
pass (ours, alone) with the second, both passes with their sum; what a product does beside, with values and with
distances that are computed again, is in no limit. Each loop exists in two forms, a plain one and one with some
multiply-adds (faster where these have units of their own); `fraction_of_limit` refers to the faster one,
`fraction_of_plain_limit` to the plain one. Ratios are medians of the ratios of each round, and (`_fastest`, in
brackets) ratios of the fastest times, which other load on the machine disturbs less. Freed memory is kept, so that no
method pays for requesting it from the operating system. On GPUs no limit is measured.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from comparing import RESULTS, parser_of
from torch import Tensor

from laplacianformer import ops
from laplacianformer._util.measuring import Call, interleaved, keep_freed_memory, quotient
from laplacianformer._util.provenance import provenance
from laplacianformer.experiments import rivals
from laplacianformer.experiments.drawing import STYLES, log_ticks, tidy
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.ops import _cpu_extension as cpu_extension
from laplacianformer.plots._figure import new_figure, save

SCALE = 4.0
BACKENDS = {"cpu": "cpu", "cuda": "triton"}
LABELS = {"compile": "torch.compile", "cdist": "torch.cdist", "sklearn": "scikit-learn", "keops": "KeOps"}
ROUNDS = 20_000  # of the loop that measures the limit
BASE = {"batch": 8, "n": 3136, "m": 49, "d": 32}
LENGTHS = (49, 784, 3136, 12544, 50176)
WHAT = ("kernel", "product", "reduction")  # queries x landmarks, its product with values, and landmarks x keys
PHASES: dict[str, Callable[[Callable[..., Any], list[Tensor]], Call]] = {
    "forward": rivals.forward,
    "forward_backward": rivals.forward_backward,
}
# Of which limits that of a phase is the sum.
LIMITS = {"forward": ("distance",), "backward": ("gradient",), "forward_backward": ("distance", "gradient")}
FORMS = ("plain", "fused")


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "kernels")
    parser.add_argument("--device", choices=BACKENDS, default="cpu", help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="only the six lines with rivals, on all threads")
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time per function (default: %(default)s)")
    arguments = parser.parse_args()
    name = BACKENDS[arguments.device]
    if (reason := ops.backends()[name]) is not None:
        parser.exit(1, f"the {name} backend can't run: {reason}\n")
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    keep_freed_memory()
    origin = provenance(arguments.device)
    if arguments.device == "cpu":
        origin["level"] = cpu_extension.LEVELS[cpu_extension.level()]
    print(", ".join(f"{key} {value}" for key, value in origin.items()))
    rows: list[Row] = []
    for line in lines(arguments.quick, arguments.seconds, arguments.device):
        show(line)
        rows += [row | origin for row in line]
        write_rows(arguments.output / "kernels.csv", rows)
    draw(rows, arguments.output / "kernels.png")


def lines(quick: bool, seconds: float, device: str) -> Iterator[list[Row]]:
    """The rows of one line of the output at a time."""
    threads = torch.get_num_threads()
    for d in (32, 64):
        for what in WHAT:
            yield measure(BASE | {"d": d}, what, seconds, device)
    if quick:
        return
    torch.set_num_threads(1)
    for d in (32, 64):
        yield measure(BASE | {"d": d}, "kernel", seconds, device)
    torch.set_num_threads(threads)
    for m in (1, 16, 196, 1024):
        yield measure(BASE | {"m": m}, "kernel", seconds, device, against_rivals=False)
    for what in WHAT:
        yield from measure_growth(what, seconds, device)


def measure(case: dict[str, int], what: str, seconds: float, device: str, *, against_rivals: bool = True) -> list[Row]:
    """One case, forward and with backward, against rivals and the limit."""
    methods = methods_of(what, device) if against_rivals else {"ours": ours(what, device)}
    inputs = inputs_of(case, what, device)
    rows: list[Row] = []
    for phase, make in (PHASES | {"backward": backward}).items():
        calls = {name: make(f, inputs) for name, f in methods.items() if measured(name, phase)}
        timed = interleaved(calls | limits(phase, device), seconds, device=device)
        rows += rows_of(labels_of(case, what, phase, growth=False), timed, math.prod(case.values()))
    return rows


def measured(method: str, phase: str) -> bool:
    return {"ours": True, "sklearn": phase == "forward"}.get(method, phase != "backward")


def backward(function: Callable[..., Tensor], inputs: list[Tensor]) -> Call:
    """The backward pass alone, again and again."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    out = function(*leaves)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)


def measure_growth(what: str, seconds: float, device: str) -> Iterator[list[Row]]:
    """Our op for each N, all in the same rounds. `slope`: of log(time) over log(N), from 3136 to the largest N."""
    cases = [BASE | {"n": n} for n in LENGTHS]
    found: dict[int, list[Row]] = {n: [] for n in LENGTHS}
    for phase, make in PHASES.items():
        calls = {str(case["n"]): make(ours(what, device), inputs_of(case, what, device)) for case in cases}
        timed = interleaved(calls | limits(phase, device), seconds, device=device)
        ratio = quotient(timed["each"], str(LENGTHS[-1]), str(BASE["n"]))
        slope = math.log(ratio) / math.log(LENGTHS[-1] / BASE["n"])
        for case in cases:
            names = {str(case["n"]): "ours"} | {name: name for name in limits(phase, device)}
            own = {key: {new: timed[key][old] for old, new in names.items()} for key in ("times", "each")}
            own["cpu_over_wall"] = timed["cpu_over_wall"]
            labels = labels_of(case, what, phase, growth=True)
            found[case["n"]] += [row | {"slope": slope} for row in rows_of(labels, own, math.prod(case.values()))]
    yield from found.values()


def labels_of(case: dict[str, int], what: str, phase: str, *, growth: bool) -> Row:
    return {"what": what, "phase": phase} | case | {"threads": torch.get_num_threads(), "growth": growth}


def rows_of(labels: Row, timed: dict[str, Any], elements: int) -> list[Row]:
    """One row per method: its times, and over those of ours; for ours, what fraction of the limit it reaches."""
    times = timed["times"]
    over_ours = {name: quotient(timed["each"], name, "ours") for name in times}
    fastest = {name: times[name]["fastest_ms"] / times["ours"]["fastest_ms"] for name in times}
    rows = []
    for name, own in times.items():
        row = labels | {"method": name} | own | {"cpu_over_wall": timed["cpu_over_wall"]}
        if name in LABELS:
            row |= {"over_ours": over_ours[name], "over_ours_fastest": fastest[name]}
        elif name == "ours" and any(other.startswith("limit") for other in times):
            for suffix, ratios in (("", over_ours), ("_fastest", fastest)):
                plain, fused = (
                    sum(ratios[f"limit_{of}_{form}"] / peak_elements(of) for of in LIMITS[labels["phase"]]) * elements
                    for form in FORMS
                )
                row |= {f"fraction_of_limit{suffix}": min(plain, fused), f"fraction_of_plain_limit{suffix}": plain}
        rows.append(row)
    return rows


def methods_of(what: str, device: str) -> dict[str, Callable[..., Any]]:
    """Ours, and the rivals that are installed and can run on this device."""
    if what == "kernel":
        plain, cdist = rivals.plain_kernel, rivals.cdist_kernel
        other = {"sklearn": rivals.sklearn_kernel() if device == "cpu" else None}
    else:
        plain, cdist = rivals.plain_matmul, rivals.cdist_matmul
        other = {"keops": rivals.keops_matmul()}
    found = {"compile": rivals.compiled(lambda *inputs: plain(*inputs, SCALE)), "cdist": partial(cdist, scale=SCALE)}
    found |= {name: partial(function, scale=SCALE) for name, function in other.items() if function is not None}
    return {"ours": ours(what, device)} | found


def ours(what: str, device: str) -> Callable[..., Tensor]:
    op = ops.laplacian_kernel if what == "kernel" else ops.laplacian_matmul
    return partial(op, scale=SCALE, backend=BACKENDS[device])


def inputs_of(case: dict[str, int], what: str, device: str) -> list[Tensor]:
    x, y = (torch.randn(case["batch"], count, case["d"], device=device) * 0.5 for count in (case["n"], case["m"]))
    if what == "reduction":
        x, y = y, x
    return [x, y] if what == "kernel" else [x, y, torch.randn(case["batch"], y.shape[1], 32, device=device)]


def limits(phase: str, device: str) -> dict[str, Call]:
    if device != "cpu":
        return {}
    peak, level = torch.ops.laplacianformer_cpu.peak, cpu_extension.level()
    return {
        f"limit_{of}_{form}": partial(peak, ROUNDS, of == "gradient", form == "fused", level)
        for of in LIMITS[phase]
        for form in FORMS
    }


def peak_elements(of: str) -> int:
    elements: int = torch.ops.laplacianformer_cpu.peak(1, of == "gradient", False, cpu_extension.level())
    return elements * ROUNDS


def show(rows: list[Row]) -> None:
    for phase, group in groupby(rows, key=lambda row: row["phase"]):
        by_method = {row["method"]: row for row in group}
        own = by_method["ours"]
        case = f"B*H={own['batch']} N={own['n']} M={own['m']} d={own['d']} threads={own['threads']}"
        parts = [f"{own['what']:9} {case:44} {phase:16} {own['median_ms']:8.2f} ms"]
        if "fraction_of_limit" in own:
            reached, fastest = own["fraction_of_limit"], own["fraction_of_limit_fastest"]
            plain = own["fraction_of_plain_limit"]
            parts.append(f"{reached:.0%} ({fastest:.0%}) of the limit, {plain:.0%} of the plain one")
        parts += [
            f"{name} {row['over_ours']:.1f}x ({row['over_ours_fastest']:.1f}x)"
            for name, row in by_method.items()
            if "over_ours" in row
        ]
        if "slope" in own:
            parts.append(f"slope {own['slope']:.3f}")
        print("  ".join([*parts, f"cpu/wall {own['cpu_over_wall']:.2f}"]), flush=True)


def draw(rows: list[Row], path: Path) -> None:
    """How many times longer the rivals take, and how our time grows with N."""
    growth = [row for row in rows if row["growth"] and row["method"] == "ours"]
    figure = new_figure(12 if growth else 7, 6)
    axes = figure.subplots(1, 2 if growth else 1, squeeze=False, width_ratios=[5, 4] if growth else None)
    draw_rivals(axes[0, 0], [row for row in rows if row["method"] in LABELS])
    if growth:
        draw_growth(axes[0, 1], growth)
    save(figure, path)


def draw_rivals(axis: Any, rows: list[Row]) -> None:
    names = [
        f"{row['what']}, width {row['d']}, threads {row['threads']}, {row['phase'].replace('_', ' + ')}" for row in rows
    ]
    order = {name: -y for y, name in enumerate(dict.fromkeys(names))}
    for style, (rival, label) in zip(STYLES[1:], LABELS.items(), strict=False):
        points = [
            (row["over_ours"], order[name]) for row, name in zip(rows, names, strict=True) if row["method"] == rival
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
    axis.set_yticks(list(order.values()), list(order), fontsize=8)
    axis.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=4, frameon=False)


def draw_growth(axis: Any, rows: list[Row]) -> None:
    cases = [(what, phase) for what in WHAT for phase in PHASES]
    for style, (what, phase) in zip(STYLES, cases, strict=False):
        points = sorted((row["n"], row["median_ms"]) for row in rows if (row["what"], row["phase"]) == (what, phase))
        axis.plot(*zip(*points, strict=True), **style, markersize=5, label=f"{what}, {phase.replace('_', ' + ')}")
    axis.set_title("this package by N, M = 49, width 32", fontsize=10)
    tidy(axis, x="N", y="time, ms")
    log_ticks(axis, LENGTHS)
    axis.tick_params(axis="x", rotation=45)
    axis.legend(fontsize=8, loc="upper left")


if __name__ == "__main__":
    main()
