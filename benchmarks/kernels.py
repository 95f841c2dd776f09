"""The speed of the kernels: against other ways to compute the same, and against the machine's limit.

    python benchmarks/kernels.py [--quick] [--device cuda] [--output results/kernel-speed]

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
from laplacianformer.ops import cpu_extension
from laplacianformer.provenance import provenance

RESULTS = Path(__file__).parent.parent / "results" / "kernel-speed"
SCALE = 4.0
BACKENDS = {"cpu": "cpu", "cuda": "triton"}
# Colour-blind safe.
COLOURS = {"ours": "#0072B2", "compile": "#E69F00", "cdist": "#009E73", "sklearn": "#D55E00", "keops": "#CC79A7"}
ROUNDS = 20_000


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


def measure(case: dict[str, int], what: str, rivals: bool, seconds: float, device: str) -> dict[str, Any]:
    """One line: `what` is kernel or product (queries against landmarks) or reduction (landmarks against keys)."""
    batch, n, m, d = (case[key] for key in ("batch", "n", "m", "d"))
    x, y = (torch.randn(batch, rows, d, device=device) * 0.5 for rows in (n, m))
    if what == "reduction":
        x, y = y, x
    inputs = [x, y] if what == "kernel" else [x, y, torch.randn(batch, y.shape[1], 32, device=device)]
    one = what == "kernel"
    functions: dict[str, Callable[..., Any] | None] = {"ours": ours_kernel if one else ours_product}
    if rivals:
        functions["compile"] = compiled(broadcast_kernel if one else broadcast_product)
        functions["cdist"] = cdist_kernel if one else cdist_product
        functions |= {"sklearn": sklearn_kernel() if device == "cpu" else None} if one else {"keops": keops_product()}
    available = {name: f for name, f in functions.items() if f is not None}
    row: dict[str, Any] = dict(case) | {"what": what, "threads": torch.get_num_threads()}
    limits = {"limit_plain": limit(False), "limit_fused": limit(True)} if device == "cpu" else {}
    elements = batch * n * m * d
    timed = interleaved({k: forward(f, inputs) for k, f in available.items()} | limits, seconds, device=device)
    row["forward"] = with_shares(timed, elements)
    differentiable = {k: forward_backward(f, inputs) for k, f in available.items() if k != "sklearn"}
    timed = interleaved(differentiable | limits, seconds, device=device)
    row["forward_backward"] = with_shares(timed, elements)
    return row


def cases(quick: bool) -> list[tuple[dict[str, int], str, bool, int]]:
    """(shape, what, with rivals, threads)."""
    threads = torch.get_num_threads()
    base = {"batch": 8, "n": 3136, "m": 49, "d": 32}
    result = [(base | {"d": d}, what, True, threads) for d in (32, 64) for what in ("kernel", "product", "reduction")]
    if quick:
        return result
    result += [(base | {"d": d}, "kernel", True, 1) for d in (32, 64)]
    result += [(base | {"m": m}, "kernel", False, threads) for m in (1, 16, 196, 1024)]
    for what in ("kernel", "product", "reduction"):
        result += [(base | {"n": n}, what, False, threads) for n in (49, 784, 3136, 12544, 50176)]
    return result


def slopes(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The log-log slope of time against N, from 3136 on."""
    result = {}
    for what in ("kernel", "product", "reduction"):
        for phase in ("forward", "forward_backward"):
            series = {r["n"]: r for r in rows if r["scaling"] and r["what"] == what and r["n"] >= 3136}
            if len(series) < 2:
                continue
            logs = [(math.log(n), math.log(r[phase]["times"]["ours"]["median_ms"])) for n, r in sorted(series.items())]
            middle = [sum(values) / len(logs) for values in zip(*logs, strict=True)]
            above = sum((a - middle[0]) * (b - middle[1]) for a, b in logs)
            result[f"{what} {phase}"] = above / sum((a - middle[0]) ** 2 for a, _ in logs)
    return result


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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    scaling = [row for row in rows if row["scaling"]]
    panels = 2 if scaling else 1
    figure, axes = pyplot.subplots(1, panels, figsize=(6 * panels, 4.5), squeeze=False, layout="constrained")
    draw_rivals(axes[0, 0], [row for row in rows if row["forward"]["ratio"]])
    if scaling:
        draw_scaling(axes[0, 1], scaling)
    for axis in axes.flat:
        axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_rivals(axis: Any, rows: list[dict[str, Any]]) -> None:
    bars = [(row, phase) for row in rows for phase in ("forward", "forward_backward")]
    for i, (name, colour) in enumerate(COLOURS.items()):
        heights = [row[phase]["times"].get(name, {}).get("median_ms", math.nan) for row, phase in bars]
        if not all(map(math.isnan, heights)):
            axis.bar([b + 0.18 * i for b in range(len(bars))], heights, 0.17, label=name, color=colour)
    labels = [
        f"{row['what']} d={row['d']}, {row['threads']} threads\n{phase.replace('_', ' + ')}" for row, phase in bars
    ]
    axis.set_xticks([b + 0.3 for b in range(len(bars))], labels, rotation=90, fontsize=7)
    axis.set(yscale="log", ylabel="ms")
    axis.set_title("B*H = 8, N = 3136, M = 49, float32", pad=24)
    axis.set_yticks([2, 5, 10, 20, 50])
    axis.legend(fontsize=8, ncols=len(COLOURS), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def draw_scaling(axis: Any, rows: list[dict[str, Any]]) -> None:
    for what in ("kernel", "product", "reduction"):
        for phase, style in (("forward", "-"), ("forward_backward", "--")):
            points = sorted((row["n"], row[phase]["times"]["ours"]["median_ms"]) for row in rows if row["what"] == what)
            axis.plot(*zip(*points, strict=True), style, marker="o", label=f"{what}, {phase.replace('_', ' + ')}")
    axis.set(xscale="log", yscale="log", xlabel="N", ylabel="ms", title="Scaling, M = 49, d = 32")
    axis.legend(fontsize=8)


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
        row = measure(case, what, rivals, arguments.seconds, arguments.device)
        rows.append(row | {"scaling": not rivals and case["m"] == 49})
        show(rows[-1])
    torch.set_num_threads(threads)
    result = {"environment": environment, "rows": rows, "slopes": slopes(rows)}
    print("slopes", result["slopes"])
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "kernels.json").write_text(json.dumps(result, indent=2) + "\n")
    plot(rows, arguments.output / "kernels.png")


if __name__ == "__main__":
    main()
