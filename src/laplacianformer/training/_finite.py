"""Numbers that are not finite in training: where they begin, and what to change."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from lightning.fabric import Fabric
from torch import nn

from laplacianformer._util.errors import InputError
from laplacianformer.inspect._finite import FINITE, first_not_finite
from laplacianformer.training._processes import in_each
from laplacianformer.training._sharding import whole


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
