"""What the ops of the `triton` backend share: whether it can run, how inputs are laid out, how sums are cut.

Nothing here imports Triton until a kernel is needed.
"""

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from laplacianformer.ops._precision import accumulation_dtype

Rest = ParamSpec("Rest")
Result = TypeVar("Result")

# Rows that lie side by side in a panel, and rows or columns of a tile of pairs.
PANEL = 128
TILE = 64

# Steps of the inner loops that are unrolled; what they run over is padded to a multiple.
UNROLL = 4

# With fewer pairs per thread than this, a thread spends too much of its time reading.
LEAST_PAIRS = 8

# A sum is cut into parts, added up afterwards, until about this many programs run: some for each processor of the
# largest GPUs. A constant, whatever the GPU: shapes alone decide how a sum is cut.
PROGRAMS = 512

# Room for the weights of the signs in backward, in bytes, both orders together.
WEIGHTS_BYTES = 1 << 26


def missing() -> str | None:
    """Why the backend can't be used on this machine, or None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if not interpreted() and not torch.cuda.is_available():
        return "there is no GPU (TRITON_INTERPRET=1 runs it on the CPU, very slowly, to check its numbers)"
    return None


def check(*tensors: Tensor) -> str | None:
    """Why these tensors can't be taken: the one check of the ops of this backend."""
    for tensor in tensors:
        if tensor.device.type == "cpu" and interpreted():
            continue
        if tensor.device.type != "cuda":
            return f"it takes CUDA tensors, got one on {tensor.device}"
        if torch.version.hip is None and torch.cuda.get_device_capability(tensor.device) < (8, 0):
            return f"it needs compute capability 8.0 or newer, {tensor.device} is older"
    return None


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on tensors of any device."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def factor(scale: float, dtype: torch.dtype) -> float:
    """-1 / scale for kernels of this dtype: neither 0 nor infinite, so that equal rows give 1 and infinite ones 0."""
    numbers = torch.finfo(dtype)
    return -min(max(1 / scale, numbers.tiny), numbers.max)


def on_its_device(
    function: Callable[Concatenate[Tensor, Rest], Result],
) -> Callable[Concatenate[Tensor, Rest], Result]:
    """Triton launches on the current device: make that the device of the first tensor."""

    @wraps(function)
    def call(first: Tensor, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
        with torch.cuda.device(first.device) if first.is_cuda else nullcontext():
            return function(first, *args, **kwargs)

    return call


def tuned(configurations: list[dict[str, int]], key: list[str]) -> Callable[[Any], Any]:
    """The fastest of a few configurations, timed on the first call for each `key`.

    LAPLACIANFORMER_AUTOTUNE=0 takes the first. All of them add in the same order: results have the same bits.
    """
    import triton

    if interpreted() or os.environ.get("LAPLACIANFORMER_AUTOTUNE", "1") == "0":
        configurations = configurations[:1]
    choices = []
    for configuration in configurations:
        constants = {name: value for name, value in configuration.items() if name != "num_warps"}
        choices.append(triton.Config(constants, num_warps=configuration["num_warps"], num_stages=1))

    def suitable(choices: list[Any], arguments: dict[str, Any], **constants: Any) -> list[Any]:
        tile = math.prod(value for name, value in constants.items() if name.startswith("BLOCK_"))
        return [choice for choice in choices if enough_pairs(tile, choice.num_warps)]

    return triton.autotune(choices, key, prune_configs_by={"early_config_prune": suitable})


def enough_pairs(tile: int, warps: int) -> bool:
    """Whether a tile of `tile` pairs is large enough for `warps` warps."""
    return tile >= LEAST_PAIRS * 32 * warps


def input_precision(dtype: torch.dtype) -> str:
    """How the matrix products of a kernel keep the accuracy of `dtype`.

    float32 on NVIDIA: three products of tensor cores, on leading and trailing bits ("tf32x3"), which lose 2^-22 of
    a product, at a third of their speed. Else the units take the numbers as they are ("ieee").
    """
    return "tf32x3" if dtype == torch.float32 and torch.version.hip is None else "ieee"


def panels(x_bnd: Tensor) -> Tensor:
    """(B, N, d) -> (B, ceil(N / PANEL), d', PANEL), in the dtype that accumulates: PANEL rows, feature by feature.

    Threads of a kernel then read neighbouring rows at offsets known when it is compiled. Features are padded
    with zeros to a multiple of UNROLL; rows beyond N hold anything.
    """
    batch, n, width = x_bnd.shape
    full, rest = divmod(n, PANEL)
    shape = (batch, math.ceil(n / PANEL), round_up(width, UNROLL), PANEL)
    out = x_bnd.new_empty(shape, dtype=accumulation_dtype(x_bnd.dtype))
    out[:, :full, :width] = x_bnd[:, : full * PANEL].unflatten(1, (full, PANEL)).mT
    if rest:
        out[:, full, :width, :rest] = x_bnd[:, full * PANEL :].mT
    out[:, :, width:] = 0
    return out


def rows(x_bnd: Tensor) -> Tensor:
    """(B, N, d) -> (B, N', d'), in the dtype that accumulates, N' and d' such that no tile ends beyond them."""
    batch, n, width = x_bnd.shape
    padded = round_up(width, 32) if width > 16 else 16
    out = x_bnd.new_empty((batch, round_up(n, PANEL), padded), dtype=accumulation_dtype(x_bnd.dtype))
    out[:, :n, :width] = x_bnd
    return out


def tiles(x_bnd: Tensor, y_bmd: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Slices of (batch, rows of x, rows of y) whose weights, padded to whole panels, fit WEIGHTS_BYTES."""
    (batch, n, _), m = x_bnd.shape, y_bmd.shape[1]
    if batch == 0 or n == 0 or m == 0:
        return
    pairs = WEIGHTS_BYTES // (2 * x_bnd.element_size())

    def fitting(length: int, other: int) -> int:
        return min(round_up(length, PANEL), max(PANEL, pairs // other // PANEL * PANEL))

    columns = fitting(m, PANEL)
    rows = fitting(n, columns)
    matrices = max(1, pairs // (rows * columns))
    for b in range(0, batch, matrices):
        for i in range(0, n, rows):
            for j in range(0, m, columns):
                yield slice(b, b + matrices), slice(i, i + rows), slice(j, j + columns)


def matrices(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Each as one batch of matrices."""
    return tuple(t.reshape(t.shape[:-2].numel(), *t.shape[-2:]) for t in tensors)


def parts(programs: int, terms: int) -> int:
    """Into how many parts of TILE terms or more to cut a sum that `programs` programs would run over."""
    return max(1, min(PROGRAMS // max(1, programs), terms // TILE))


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
