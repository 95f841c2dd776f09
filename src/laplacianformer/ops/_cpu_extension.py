"""The C++ extension of the `cpu` backend: whether it can be used, its instruction sets, and its calls."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

FOLDER = Path(__file__).parents[1]

# Slowest first; the numbers of the C++ side. On other machines than x86-64, "baseline" is all there is.
LEVELS = ("baseline", "avx2", "avx512")

# One setting for the whole process; None is the automatic choice.
_forced: str | None = os.environ.get("LAPLACIANFORMER_CPU_LEVEL") or None


@lru_cache(maxsize=1)
def missing() -> str | None:
    """Why the extension can't be used on this machine, or None if it can. Loads it on the first call."""
    binaries = sorted(FOLDER.glob("_cpu.*so")) + sorted(FOLDER.glob("_cpu.*pyd"))
    if not binaries:
        return not_built()
    try:
        torch.ops.load_library(str(binaries[0]))
    except (OSError, RuntimeError) as error:
        return f"the C++ extension {binaries[0].name} does not load: {error}"
    return None


def not_built() -> str:
    failure = FOLDER / "build_failure.txt"
    if not failure.exists():
        return "the C++ extension is not built: no binary beside the package"
    reason = f"the C++ extension is not built: {failure.read_text().strip()}"
    # pip hides what a build prints. Here it is seen once: `missing` remembers its answer.
    logging.getLogger("laplacianformer").warning(
        "%s. Plain PyTorch is used instead, which is slower. `pip install -v` shows the whole build.", reason
    )
    return reason


def levels() -> tuple[str, ...]:
    """The instruction sets that this machine has, slowest first."""
    return LEVELS[: _best() + 1]


@lru_cache(maxsize=1)
def _best() -> int:
    best: int = torch.ops.laplacianformer_cpu.best_level()
    return best


def level() -> int:
    """The instruction set in use: the automatic choice, or the forced one."""
    best = _best()
    if _forced is None:
        return best
    if _forced not in LEVELS:
        raise ValueError(f"LAPLACIANFORMER_CPU_LEVEL is {_forced!r}, expected one of {', '.join(LEVELS)}")
    if LEVELS.index(_forced) > best:
        raise RuntimeError(f"the instruction set {_forced!r} was asked for, this machine has {', '.join(levels())}")
    return LEVELS.index(_forced)


@contextmanager
def use_level(name: str | None) -> Iterator[None]:
    """Force one instruction set inside the block (None: the automatic choice)."""
    global _forced
    previous, _forced = _forced, name
    try:
        yield
    finally:
        _forced = previous


def check(*tensors: Tensor) -> str | None:
    """Why these tensors can't be taken: the one check of the ops of this backend."""
    for tensor in tensors:
        if not tensor.is_cpu:
            return f"it takes CPU tensors, got one on {tensor.device}"
    return None


def dense(*tensors: Tensor) -> tuple[Tensor, ...]:
    """With unit stride in the last dimension: as they are, or copied."""
    return tuple(t if t.shape[-1] <= 1 or t.stride(-1) == 1 else t.contiguous() for t in tensors)


def tables(cos: Tensor | None, sin: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The cosines and sines of a rotation, or none, as contiguous tables."""
    return (None, None) if cos is None or sin is None else (cos.contiguous(), sin.contiguous())
