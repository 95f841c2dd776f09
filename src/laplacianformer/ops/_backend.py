"""Which implementation of an op runs: automatic, or forced by argument, context manager or environment.

Each op has one `Backends` table with its implementations. An implementation has `check(*tensors)`, which says in words
why it can't run these inputs (None if it can), and the functions that the op calls. The fastest that can run is
chosen; `reference` runs everything and comes last. An op that is made of other ops has a `Composed` table instead.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from laplacianformer._util.limits import shown
from laplacianformer.ops import _cpu_extension as cpu_extension
from laplacianformer.ops import _triton_support as triton_support
from laplacianformer.ops._tracing import is_unobserved

# Fastest first. Each value says why the backend can't run on this machine at all, or None if it can.
_MISSING: dict[str, Callable[[], str | None]] = {
    "cpu": cpu_extension.missing,
    "triton": triton_support.missing,
    "reference": lambda: None,
}

# Of each thread, and of each task of asyncio: blocks in several threads may overlap in any way. The environment is the
# default of all.
_forced: ContextVar[str | None] = ContextVar("backend", default=os.environ.get("LAPLACIANFORMER_BACKEND") or None)


def backends() -> dict[str, str | None]:
    """Every backend, fastest first: None if it can run on this machine, else the reason why it can't."""
    return {name: missing() for name, missing in _MISSING.items()}


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Force every op inside the block onto one backend (None: the automatic choice).

    It holds for the calls of this thread, or of this task of asyncio. Gradients run on the backend of their forward
    call, wherever they are computed.
    """
    token = _forced.set(_known(name))
    try:
        yield
    finally:
        _forced.reset(token)


def forced() -> str | None:
    """What `use_backend` or the environment says here, for code that runs later, perhaps in another thread."""
    return _forced.get()


def check_environment() -> None:
    """Raise if LAPLACIANFORMER_BACKEND or LAPLACIANFORMER_CPU_LEVEL asks for what this machine can't do."""
    name = _known(os.environ.get("LAPLACIANFORMER_BACKEND") or None)
    if name is not None and (reason := _MISSING[name]()) is not None:
        raise RuntimeError(f"LAPLACIANFORMER_BACKEND is {name!r}, which can't run: {reason}")
    if cpu_extension.missing() is None:
        cpu_extension.level()


def requested(backend: str | None) -> str:
    """The backend that the caller, the context or the environment asks for; "" for the automatic choice."""
    return _known(_forced.get() if backend is None else backend) or ""


class Checked(Protocol):
    """What every implementation has."""

    def check(self, *tensors: Tensor) -> str | None: ...


Implementation = TypeVar("Implementation", bound=Checked)


class Backends(Generic[Implementation]):
    """The implementations of one op. `triton` is a function, so that Triton is imported only where it is used."""

    def __init__(
        self, op: str, *, cpu: Implementation, triton: Callable[[], Implementation], reference: Implementation
    ) -> None:
        self.op = op
        self.table: dict[str, Callable[[], Implementation]] = {
            "cpu": lambda: cpu,
            "triton": triton,
            "reference": lambda: reference,
        }

    def choose(self, backend: str, *tensors: Tensor) -> Implementation:
        """The implementation that runs the op on these tensors."""
        return self.table[self.name(backend, *tensors)]()

    def name(self, backend: str, *tensors: Tensor) -> str:
        """The name of its backend. `backend` as `requested` gives it."""
        for name in [backend] if backend else self.table:
            reason = _MISSING[name]()
            if reason is None:
                reason = self.table[name]().check(*tensors)
            if reason is None:
                return name
        raise RuntimeError(
            f"{self.op}: backend {backend!r} was asked for and can't run: {reason}. "
            "Leave it out for the automatic choice."
        )


Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Composed(Generic[Function]):
    """The implementations of an op that is made of other ops: `reference` is their composition, `cpu` one C++ call for
    all of them, and `cpu_check` says why that can't run these arguments.

    Where it can't, or where compilers, counters or transforms want to see the parts, the composition runs. Its parts
    run on the backend that was asked for; where that can't run one of them, the part raises.
    """

    cpu: Function
    cpu_check: Callable[..., str | None]
    reference: Function

    def choose(self, backend: str, *arguments: Any) -> Function:
        """The function that runs the op on these arguments. `backend` as `requested` gives it."""
        in_one_call = backend in ("", "cpu") and is_unobserved(*arguments) and self.cpu_check(*arguments) is None
        return self.cpu if in_one_call else self.reference


def _known(name: str | None) -> str | None:
    if name is not None and (not isinstance(name, str) or name not in _MISSING):
        raise ValueError(
            f"unknown backend {shown(name)} (argument, use_backend or LAPLACIANFORMER_BACKEND): "
            f"expected one of {', '.join(_MISSING)}"
        )
    return name
