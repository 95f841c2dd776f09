"""Peak memory and time of one attention layer by number of tokens, in inference and in training.

A layer of 64 channels and 2 heads on one image. `Transformer` stores its N x N matrix, as in the definition and in the
paper's figure; `softmax, fused` is PyTorch's scaled_dot_product_attention. Every measurement has a process of its own,
forked from a server that has imported everything and computed nothing; memory is what the process needs at its peak
beyond what it had after a small pass. A method is not measured beyond the length at which memory or time runs out.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from laplacianformer._util.errors import is_out_of_memory
from laplacianformer._util.measuring import ProcessKilled, in_child, interleaved, limit_memory, peak_memory
from laplacianformer.attention import ATTENTIONS, GridAttention
from laplacianformer.attention._grid import allowed
from laplacianformer.experiments.drawing import STYLES, log_ticks, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.ops._pooling import Size
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "Figure 3b"
CLAIM: str = (
    "The memory of LaplacianFormer grows linearly with the length of the input, is about that of Performer and SOFT, "
    "and far below that of the Transformer."
)
DIM, HEADS = 64, 2
LENGTHS = tuple(4**power for power in range(4, 9))  # 256 to 65536: squares, like the tokens of an image
MOST_SECONDS = 60.0  # per pass: a method that takes longer is not measured at greater lengths
FRACTION = 0.7  # of the free memory, for one process
PARTS = ("forward", "training")


class StoredSoftmax(GridAttention):
    """Softmax attention as it is defined, with its matrix in memory."""

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        q_bhnd, k_bhnd, keys = self.rotate(q_bhnd, size), self.rotate(k_bhnd, size), allowed(mask)
        scores_bhnn = q_bhnd @ k_bhnd.mT / self.head_dim**0.5
        return (scores_bhnn if keys is None else scores_bhnn.masked_fill(~keys, -torch.inf)).softmax(-1) @ v_bhnd


METHODS: dict[str, type[GridAttention]] = {
    "LaplacianFormer": ATTENTIONS["laplacian"],
    "Transformer": StoredSoftmax,
    "softmax, fused": ATTENTIONS["softmax"],
    "Performer": ATTENTIONS["performer"],
    "SOFT": ATTENTIONS["soft"],
}


def run(settings: Settings) -> Outcome:
    lengths = LENGTHS[:2] if settings.quick else LENGTHS
    rows = [row for method in METHODS for part in PARTS for row in _measure(method, part, lengths)]
    write_rows(settings.results / "memory.csv", rows)
    _draw(rows, settings.results / "memory.png")
    return judge(rows)


def _measure(method: str, part: str, lengths: Sequence[int]) -> list[Row]:
    """By length, up to the greatest one that fits."""
    rows: list[Row] = []
    for length in lengths:
        measured = partial(_peak_and_time, method, part, length, torch.get_num_threads())
        try:
            found = in_child(measured, preload=__name__)
        except ProcessKilled:
            break
        if found is None:
            break
        rows.append({"method": method, "part": part, "tokens": length, **found})
        if found["seconds"] > MOST_SECONDS:
            break
    return rows


def _peak_and_time(method: str, part: str, length: int, threads: int) -> Row | None:
    """Megabytes and seconds; None where memory was not enough."""
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layer = METHODS[method](DIM, HEADS).to(device).train(part == "training")
    _pass(layer, torch.randn(1, 64, DIM, device=device), part)
    call = partial(_pass, layer, torch.randn(1, length, DIM, device=device), part)
    if device == "cpu":
        limit_memory(FRACTION)
    try:
        megabytes = peak_memory(call, device)
        times = interleaved({"pass": call}, seconds=0.3, rounds=3, device=device)["times"]["pass"]
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    return {"megabytes": round(megabytes, 2), "seconds": float(f"{times['fastest_ms'] / 1e3:.4g}")}


def _pass(layer: GridAttention, x: Tensor, part: str) -> None:
    side = math.isqrt(x.shape[1])
    with torch.set_grad_enabled(part == "training"):
        out = layer(x.detach().requires_grad_(part == "training"), (side, x.shape[1] // side))
        if part == "training":
            out.sum().backward()


def exponent(rows: Sequence[Row], method: str, part: str, what: str) -> float:
    """The least-squares slope of the logarithms over the three greatest lengths; NaN with fewer than two."""
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


def _draw(rows: Sequence[Row], path: Path) -> None:
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
