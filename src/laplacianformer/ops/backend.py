"""Which implementation of an op runs: automatic, or forced by argument, context manager or environment.

A backend of an op is a module `laplacianformer.ops.<op>.<backend>` with `check(*tensors)`, which says in
words why it can't run these inputs (None if it can), and the functions that the op calls. The fastest
backend that can run is chosen; `reference` runs everything and comes last.
"""

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from torch import Tensor

from laplacianformer.ops import cpu_extension, triton_support
from laplacianformer.ops.precision import without_autocast

# Fastest first. Each value says why the backend can't run on this machine at all, or None if it can.
_MISSING: dict[str, Callable[[], str | None]] = {
    "cpu": cpu_extension.missing,
    "triton": triton_support.missing,
    "reference": lambda: None,
}

# One setting for the whole process, as the flags of torch.backends are.
_forced: str | None = os.environ.get("LAPLACIANFORMER_BACKEND") or None


def backends() -> dict[str, str | None]:
    """Every backend, fastest first: None if it can run on this machine, else the reason why it can't."""
    return {name: missing() for name, missing in _MISSING.items()}


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Force every op inside the block onto one backend (None: the automatic choice)."""
    global _forced
    previous, _forced = _forced, _known(name)
    try:
        yield
    finally:
        _forced = previous


def requested(backend: str | None) -> str:
    """The backend that the caller, the context or the environment asks for; "" for the automatic choice."""
    return _known(_forced if backend is None else backend) or ""


def run(op: str, function: str, backend: str, tensors: tuple[Tensor, ...], *rest: Any) -> Any:
    """Call `function` of the chosen backend of `op`, with autocast off: the op decides its own precision."""
    module = _module(op, chosen(op, backend, tensors))
    with without_autocast(tensors[0].device):
        return getattr(module, function)(*tensors, *rest)


def chosen(op: str, backend: str, tensors: tuple[Tensor, ...]) -> str:
    """The backend that runs `op` on these tensors."""
    for name in [backend] if backend else _MISSING:
        reason = _MISSING[name]()
        if reason is None:
            reason = _module(op, name).check(*tensors)
        if reason is None:
            return name
    raise RuntimeError(
        f"{op}: backend {backend!r} was asked for and can't run: {reason}. Leave it out for the automatic choice."
    )


@cache
def _module(op: str, backend: str) -> ModuleType:
    return importlib.import_module(f"laplacianformer.ops.{op}.{backend}")


def _known(name: str | None) -> str | None:
    if name is not None and name not in _MISSING:
        raise ValueError(
            f"unknown backend {name!r} (argument, use_backend or LAPLACIANFORMER_BACKEND): "
            f"expected one of {', '.join(_MISSING)}"
        )
    return name
