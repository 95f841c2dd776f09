"""Numbers that are not finite in training: where they begin, and what to change."""

import signal
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

from lightning.fabric import Fabric
from torch import nn

from laplacianformer._util.errors import InputError
from laplacianformer.inspect._finite import FINITE, first_not_finite
from laplacianformer.training._processes import in_each
from laplacianformer.training._sharding import whole

_BFLOAT16_TRIAL = """
import torch
with torch.autocast("cpu", torch.bfloat16):
    torch.nn.Conv2d(8, 8, 3)(torch.randn(2, 8, 32, 32)).sum().backward()
    torch.nn.Linear(64, 64)(torch.randn(64, 64)).sum().backward()
"""


def try_bfloat16_on_cpu() -> None:
    """Compute in bfloat16 once, in a separate process: some CPUs announce instructions that kill it."""
    trial = subprocess.run([sys.executable, "-c", _BFLOAT16_TRIAL], capture_output=True, text=True, check=False)
    if trial.returncode == -signal.SIGILL:
        raise InputError(
            "bfloat16 kills a process on this CPU, which announces AMX and can't use it: set the environment variable "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before you start, or run.precision=float32"
        )
    if trial.returncode != 0:
        last = (trial.stderr.strip().splitlines() or [f"exit code {trial.returncode}"])[-1]
        raise InputError(f"bfloat16 does not work on this machine ({last}): set run.precision=float32")


def error(what: str, step: int, where: str) -> InputError:
    """For a step whose loss or gradient is not finite; `where` says where it began."""
    return InputError(
        f"the {what} is not finite at step {step}: {where}; checkpoints are from before: try a lower "
        "optimise.lr or optimise.clip_norm, or run.precision=float32"
    )


def stop_evaluation(fabric: Fabric, model: nn.Module, inputs: Iterable[tuple[Any, ...]]) -> None:
    """Raise, in all processes, in which layer outputs for held-out data stop being finite.

    inputs: the arguments of the model, batch by batch; the first batch that shows it in any process decides.
    """

    def check(where: str) -> None:
        if where != FINITE:
            raise InputError(f"outputs for held-out data are not finite: {where}; checkpoints are from before")

    for arguments in inputs:
        with fabric.autocast():
            where = first_not_finite(model, *arguments)
        in_each(fabric, partial(check, where))


def gradients_not_finite(model: nn.Module) -> str:
    """The first gradient that is not finite, in words."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not whole(parameter.grad).isfinite().all():
            return f"the outputs are finite, but the gradient of {name} is not"
    return "outputs and gradients are finite, but their norm is not"
