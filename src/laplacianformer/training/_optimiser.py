"""The optimiser that a recipe asks for, and the schedule of its learning rate."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay, param_groups_weight_decay
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, PolyLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import nn

from laplacianformer._util.errors import InputError
from laplacianformer.training._muon import Muon
from laplacianformer.training._recipe import Optimise

_POWERS = {"linear": 1.0, "poly": 0.9}  # of the line from 1 to 0, by the name of the decay; the others are no powers


def create_optimiser(parameters: Any, optimise: Optimise) -> torch.optim.Optimizer:
    """An optimiser of timm, or `muon32`, with no weight decay on norms, biases and per-head parameters.

    parameters: a model, or groups of parameters with weight decays and layer decays of their own.
    """
    rate = optimise.lr * optimise.batch_size / (optimise.lr_batch or optimise.batch_size)
    layers: dict[str, float] = {}
    if isinstance(parameters, nn.Module) and optimise.layer_decay < 1:
        layers = {"layer_decay": optimise.layer_decay}
    try:
        if optimise.optimiser == "muon32":
            groups = parameters
            if isinstance(parameters, nn.Module):
                skipped: Iterable[str] = getattr(parameters, "no_weight_decay", tuple)()
                grouped = param_groups_layer_decay if layers else param_groups_weight_decay
                groups = grouped(parameters, optimise.weight_decay, no_weight_decay_list=skipped, **layers)
            return Muon(groups, lr=rate, weight_decay=optimise.weight_decay)
        return create_optimizer_v2(
            parameters, optimise.optimiser, lr=rate, weight_decay=optimise.weight_decay, **layers
        )
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(f"can't create optimise.optimiser={optimise.optimiser}: {error}") from None


def create_schedule(
    optimiser: torch.optim.Optimizer, optimise: Optimise, steps_per_epoch: int, lr_steps: Sequence[float] = ()
) -> Scheduler:
    """Linear warm-up, then a cosine, a line or a power of it, or a drop to a tenth after each epoch in `lr_steps`: a
    function of the step."""
    warmup = round(optimise.warmup_epochs * steps_per_epoch)
    if lr_steps:
        return MultiStepLRScheduler(
            optimiser,
            decay_t=[round(epoch * steps_per_epoch) + 1 for epoch in lr_steps],  # timm's come one step early
            decay_rate=0.1,
            warmup_t=warmup,
            warmup_lr_init=optimise.warmup_lr,
            warmup_prefix=False,
            t_in_epochs=False,
        )
    power = _POWERS.get(optimise.decay)
    options: dict[str, Any] = {} if power is None else {"power": power}
    return (CosineLRScheduler if power is None else PolyLRScheduler)(
        optimiser,
        t_initial=max(1, optimise.epochs * steps_per_epoch - warmup),
        lr_min=optimise.min_lr,
        warmup_t=warmup,
        warmup_lr_init=optimise.warmup_lr,
        warmup_prefix=True,
        t_in_epochs=False,
        **options,
    )
