"""Numbers that are not finite: find the layer where they begin, and say what to change."""

import signal
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
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
    """For a step whose loss or gradient is not finite; `where` is what one of the next two functions returned."""
    return InputError(
        f"the {what} is not finite at step {step}: {where}; checkpoints are from before: try a lower "
        "optimise.lr or optimise.clip_norm, or run.precision=float32"
    )


@torch.no_grad()
def first_not_finite(model: nn.Module, images: Any, *more: Any) -> str:
    """Where numbers first stop being finite in the forward pass `model(images, *more)`, in words.

    The model stays in its mode. Processes that share its weights (FSDP) have to call this together.
    """
    for name, parameter in model.named_parameters():
        if not whole(parameter).isfinite().all():
            return f"the weights {name} are already not finite"
    found: list[str] = []

    def look(name: str, output: Any) -> None:
        if not found and not _finite(output):
            found.append(name)

    hooks = [
        module.register_forward_hook(lambda module, inputs, output, name=name: look(name, output))
        for name, module in model.named_modules()
        if name
    ]
    try:
        model(images, *more)
    finally:
        for hook in hooks:
            hook.remove()
    if not _finite(images):
        return "the images themselves are not finite"
    return f"the first layer whose output is not finite is {found[0]}" if found else "every layer's output is finite"


def _finite(value: Any) -> bool:
    """Whether all tensors in tuples, lists and dictionaries are finite."""
    if isinstance(value, Tensor):
        return bool(value.isfinite().all())
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return all(_finite(part) for part in parts)


def gradients_not_finite(model: nn.Module) -> str:
    """The first gradient that is not finite, in words."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not whole(parameter.grad).isfinite().all():
            return f"the outputs are finite, but the gradient of {name} is not"
    return "outputs and gradients are finite, but their norm is not"
