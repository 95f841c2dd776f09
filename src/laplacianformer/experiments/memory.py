"""Peak memory and time of one attention layer by number of tokens, forward and in training.

A layer of 64 channels and 2 heads on one image. `Transformer` stores its N x N matrix, as the definition is written and
as the paper draws it; `softmax, fused` is PyTorch's scaled_dot_product_attention. Every measurement is a process of its
own, from a server that has imported everything and computed nothing; memory is what the process needs at its peak
beyond what it had after a small pass. A method that does not fit, or takes too long, ends there.
"""

import ctypes
import math
import multiprocessing
import re
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplacianformer.attention import ATTENTIONS, GridAttention
from laplacianformer.experiments.drawing import STYLES, log_ticks, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.ops.pooling import Size
from laplacianformer.plots.figure import new_figure, save

SOURCE = "Figure 3b"
CLAIM = (
    "The memory of LaplacianFormer grows linearly with the length of the input, is level with that of Performer and "
    "SOFT, and far below that of the Transformer."
)
DIM, HEADS = 64, 2
LENGTHS = tuple(4**power for power in range(4, 9))  # 256 to 65536: squares, as the tokens of an image
MOST_SECONDS = 60.0  # of one pass: a method that takes longer goes no further
SHARE = 0.7  # of the memory that is free, for one process
PARTS = ("forward", "training")


class StoredSoftmax(GridAttention):
    """Softmax attention as it is defined, its matrix in memory."""

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size) -> Tensor:
        q_bhnd, k_bhnd = self.rotate(q_bhnd, size, size), self.rotate(k_bhnd, size, size)
        return (q_bhnd @ k_bhnd.mT / self.head_dim**0.5).softmax(-1) @ v_bhnd


METHODS: dict[str, type[GridAttention]] = {
    "LaplacianFormer": ATTENTIONS["laplacian"],
    "Transformer": StoredSoftmax,
    "softmax, fused": ATTENTIONS["softmax"],
    "Performer": ATTENTIONS["performer"],
    "SOFT": ATTENTIONS["soft"],
}


def run(settings: Settings) -> Outcome:
    lengths = LENGTHS[:2] if settings.quick else LENGTHS
    rows = [row for method in METHODS for part in PARTS for row in measure(method, part, lengths)]
    write_rows(settings.results / "memory.csv", rows)
    draw(rows, settings.results / "memory.png")
    return judge(rows)


def measure(method: str, part: str, lengths: Sequence[int]) -> list[Row]:
    """By length, as far as it fits."""
    rows: list[Row] = []
    for length in lengths:
        found = in_its_own_process(method, part, length)
        if found is None:
            break
        rows.append({"method": method, "part": part, "tokens": length, **found})
        if found["seconds"] > MOST_SECONDS:
            break
    return rows


def in_its_own_process(method: str, part: str, length: int) -> Row | None:
    """Memory and time; None where they were not enough, or the system ended the process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(sender, method, part, length, torch.get_num_threads()))
    process.start()
    sender.close()
    try:
        found: Row | None = receiver.recv()
    except EOFError:
        found = None
    process.join()
    receiver.close()
    if process.exitcode == 1:
        raise RuntimeError(f"measuring {method} at {length} tokens failed; the reason is above")
    return found


def _measured(sender: Any, method: str, part: str, length: int, threads: int) -> None:
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layer = METHODS[method](DIM, HEADS).to(device).train(part == "training")
    _pass(layer, torch.randn(1, 64, DIM, device=device), part)
    x = torch.randn(1, length, DIM, device=device)
    try:
        megabytes = _peak(lambda: _pass(layer, x, part), device)
        sender.send({"megabytes": round(megabytes, 2), "seconds": _fastest(lambda: _pass(layer, x, part))})
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and "alloc" not in str(error) and "memory" not in str(error):
            raise
        sender.close()  # without a word: it does not fit


def _fastest(call: Callable[[], None]) -> float:
    """Seconds, of several calls unless they take long."""
    times: list[float] = []
    while not times or (len(times) < 10 and sum(times) < 2):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return float(f"{min(times):.4g}")


def _pass(layer: GridAttention, x: Tensor, part: str) -> None:
    side = math.isqrt(x.shape[1])
    with torch.set_grad_enabled(part == "training"):
        out = layer(x.detach().requires_grad_(part == "training"), (side, x.shape[1] // side))
        if part == "training":
            out.sum().backward()


def _peak(call: Callable[[], None], device: str) -> float:
    """Megabytes beyond what is in use now: of the GPU, or of this process, whose memory is bounded meanwhile."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    free = int(_number("/proc/meminfo", "MemAvailable") * 1024 * SHARE)
    in_use = _number("/proc/self/status", "VmData") * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (in_use + free, resource.RLIM_INFINITY))
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use now
    before = _number("/proc/self/status", "VmRSS")
    call()
    return (_number("/proc/self/status", "VmHWM") - before) / 1024


def _number(file: str, field: str) -> int:
    """Kilobytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(file).read_text())
    assert found is not None
    return int(found.group(1))


def exponent(rows: Sequence[Row], method: str, part: str, what: str) -> float:
    """The slope of the logarithms over the longest three lengths, by least squares; NaN with fewer than two."""
    found = [row for row in rows if (row["method"], row["part"]) == (method, part) and row[what] > 0][-3:]
    if len(found) < 2:
        return math.nan
    x, y = ([math.log(row[name]) for row in found] for name in ("tokens", what))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def judge(rows: Sequence[Row]) -> Outcome:
    exponents = {method: exponent(rows, method, "forward", "megabytes") for method in METHODS}
    training = {method: exponent(rows, method, "training", "megabytes") for method in METHODS}
    times = {method: exponent(rows, method, "forward", "seconds") for method in METHODS}
    reached = {method: max(row["tokens"] for row in rows if row["method"] == method) for method in METHODS}
    common = min(reached.values())
    megabytes = {row["method"]: row["megabytes"] for row in rows if (row["tokens"], row["part"]) == (common, "forward")}
    measured = (
        "exponent of memory in the number of tokens, forward and in training, and of time: "
        + "; ".join(f"{name} {exponents[name]:.2f}, {training[name]:.2f}, {times[name]:.2f}" for name in METHODS)
        + f". Megabytes of a forward pass at {common} tokens: "
        + ", ".join(f"{name} {found:.1f}" for name, found in megabytes.items())
        + f". The Transformer fits up to {reached['Transformer']} tokens, LaplacianFormer up to "
        f"{reached['LaplacianFormer']}."
    )
    linear = exponents["LaplacianFormer"] < 1.2 and training["LaplacianFormer"] < 1.2
    ours, others = megabytes["LaplacianFormer"], (megabytes["Performer"], megabytes["SOFT"])
    parts = linear, ours < 2 * max(others), ours < megabytes["Transformer"] / 2
    return Outcome(measured, "agrees" if all(parts) else "agrees in part" if any(parts) else "disagrees")


def draw(rows: Sequence[Row], path: Path) -> None:
    drawn = new_figure(9, 5.4)
    units = {"megabytes": "peak memory, MB", "seconds": "time, s"}
    panels = drawn.subplots(2, 2, sharex=True)
    for line, (what, unit) in zip(panels, units.items(), strict=True):
        for axis, part in zip(line, PARTS, strict=True):
            for style, method in zip(STYLES, METHODS, strict=False):
                case = {"method": method, "part": part}
                found = [(row["tokens"], row[what]) for row in rows if case.items() <= row.items() and row[what] > 0]
                if found:
                    axis.plot(*zip(*found, strict=True), **style, markersize=5, label=method)
            log_ticks(axis, (row["tokens"] for row in rows))
            axis.set_title("forward pass" if part == "forward" else "forward and backward pass", fontsize=10)
            tidy(axis, x="tokens", y=unit)
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    save(drawn, path)
