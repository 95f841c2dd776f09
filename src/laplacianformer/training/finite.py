"""When a run goes wrong: name the layer, or what to set."""

import signal
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer.training.sharding import whole

BFLOAT16_TRIAL = """
import torch
with torch.autocast("cpu", torch.bfloat16):
    torch.nn.Conv2d(8, 8, 3)(torch.randn(2, 8, 32, 32)).sum().backward()
    torch.nn.Linear(64, 64)(torch.randn(64, 64)).sum().backward()
"""


def try_bfloat16_on_cpu() -> None:
    """Compute in bfloat16 once, in a process of its own: some CPUs announce instructions that kill it."""
    trial = subprocess.run([sys.executable, "-c", BFLOAT16_TRIAL], capture_output=True, text=True, check=False)
    if trial.returncode == -signal.SIGILL:
        raise InputError(
            "bfloat16 kills a process on this CPU, which announces AMX and can't use it: set the environment variable "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before the start, or run.precision=float32"
        )
    if trial.returncode != 0:
        last = (trial.stderr.strip().splitlines() or [f"exit code {trial.returncode}"])[-1]
        raise InputError(f"bfloat16 does not work on this machine ({last}): set run.precision=float32")


@torch.no_grad()
def first_not_finite(model: nn.Module, images: Any, *more: Any) -> str:
    """Where numbers first stop being finite in a forward pass `model(images, *more)` of it as it is, in words.

    Processes that share a model (FSDP) call this together.
    """
    for name, parameter in model.named_parameters():
        if not whole(parameter).isfinite().all():
            return f"the weights {name} are not finite already"
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
    """Of all tensors in tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return bool(value.isfinite().all())
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return all(_finite(part) for part in parts)


def gradients_not_finite(model: nn.Module) -> str:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not whole(parameter.grad).isfinite().all():
            return f"the outputs are finite, but the gradient of {name} is not"
    return "outputs and gradients are finite, but their norm is not"
