"""The number format that a model computes in."""

import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from laplacianformer._util.errors import InputError

Precision = Literal["float32", "bfloat16"]

_BFLOAT16_TRIAL = """
import torch
with torch.autocast("cpu", torch.bfloat16):
    torch.nn.Conv2d(8, 8, 3)(torch.randn(2, 8, 32, 32)).sum().backward()
    torch.nn.Linear(64, 64)(torch.randn(64, 64)).sum().backward()
"""


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """A block in which models compute in this precision.

    In bfloat16 by autocast: linear layers and convolutions round their inputs, and sums stay in float32.
    """
    if precision == "float32":
        return nullcontext()
    # A trial takes seconds. Only CPUs that announce AMX are known to need it.
    if device.type == "cpu" and cpu_has("amx_tile", unknown=True):
        try_bfloat16_on_cpu("--precision float32")
    try:
        return torch.autocast(device.type, torch.bfloat16)
    except RuntimeError as error:
        raise InputError(f"bfloat16 can't be used on {device}: {error}") from None


def cpu_has(instructions: str, *, unknown: bool) -> bool:
    """Whether this CPU announces these instructions; `unknown` where torch is too old to say it."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get(instructions, unknown))


def try_bfloat16_on_cpu(otherwise: str) -> None:
    """Compute in bfloat16 once, in a separate process: some CPUs announce instructions that kill it.

    otherwise: how to ask for float32, for the error.
    """
    trial = subprocess.run([sys.executable, "-c", _BFLOAT16_TRIAL], capture_output=True, text=True, check=False)
    if trial.returncode == -signal.SIGILL:
        raise InputError(
            "bfloat16 kills a process on this CPU, which announces AMX and can't use it: set the environment variable "
            f"ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before you start, or {otherwise}"
        )
    if trial.returncode != 0:
        last = (trial.stderr.strip().splitlines() or [f"exit code {trial.returncode}"])[-1]
        raise InputError(f"bfloat16 does not work on this machine ({last}): set {otherwise}")
