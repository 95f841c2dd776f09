"""What a recipe asks for: the engine, the model, the optimiser with its schedule, the mixing of labels."""

import os
from typing import Any

import timm
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from timm.data import Mixup
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import nn

from laplacianformer.errors import InputError
from laplacianformer.recipes import Optimise, Recipe, Run
from laplacianformer.tasks.sharding import shard

PRECISIONS: dict[str, Any] = {"float32": "32-true", "bfloat16": "bf16-mixed"}


def create_engine(run: Run) -> Fabric:
    """Lightning Fabric: the device, the processes and how they talk, as torchrun, SLURM or the recipe say."""
    devices, nodes = run.devices, run.num_nodes
    if TorchElasticEnvironment.detect():  # Lightning wants the numbers of torchrun and SLURM once more
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    elif SLURMEnvironment.detect():
        nodes = int(os.environ.get("SLURM_NNODES", "1"))
        devices = int(os.environ["SLURM_NTASKS"]) // nodes
    strategy: Any = run.strategy
    if strategy == "fsdp":
        if devices == "auto":
            raise InputError("run.strategy=fsdp: give run.devices=N, or start with torchrun or SLURM")
        strategy = ModelParallelStrategy(shard, data_parallel_size=devices * nodes, tensor_parallel_size=1)
    try:
        return Fabric(
            accelerator=run.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=strategy,
            precision=PRECISIONS[run.precision],
        )
    except (RuntimeError, ValueError) as error:  # no such device, or not so many
        raise InputError(f"can't run on run.accelerator={run.accelerator}, run.devices={devices}: {error}") from None


def create_model(recipe: Recipe, num_classes: int) -> nn.Module:
    name = recipe.model.name
    try:
        model: nn.Module = timm.create_model(name, num_classes=num_classes, **recipe.model.args)
    except (RuntimeError, TypeError, ValueError) as error:
        known = timm.list_models("laplacianformer_*")
        hint = "" if timm.is_model(name) else f"; known are timm's models and {', '.join(known)}"
        raise InputError(f"can't create model.name={name}: {' '.join(str(error).split())}{hint}") from None
    return model


def create_optimiser(model: nn.Module, optimise: Optimise) -> torch.optim.Optimizer:
    """timm's, with no weight decay on norms, biases and per-head parameters."""
    rate = optimise.lr * optimise.batch_size / (optimise.lr_batch or optimise.batch_size)
    try:
        return create_optimizer_v2(model, optimise.optimiser, lr=rate, weight_decay=optimise.weight_decay)
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(f"can't create optimise.optimiser={optimise.optimiser}: {error}") from None


def create_schedule(optimiser: torch.optim.Optimizer, optimise: Optimise, steps_an_epoch: int) -> Scheduler:
    """Linear warm-up, then a cosine; a function of the step alone."""
    warmup = round(optimise.warmup_epochs * steps_an_epoch)
    return CosineLRScheduler(
        optimiser,
        t_initial=max(1, optimise.epochs * steps_an_epoch - warmup),
        lr_min=optimise.min_lr,
        warmup_t=warmup,
        warmup_lr_init=optimise.warmup_lr,
        warmup_prefix=True,
        t_in_epochs=False,
    )


def create_mixup(recipe: Recipe, num_classes: int, world: int) -> Mixup | None:
    augment, batch_size = recipe.augment, recipe.optimise.batch_size
    if not (augment.mixup or augment.cutmix):
        return None
    if batch_size // world % 2:
        raise InputError(
            f"mixup needs an even batch a process: optimise.batch_size={batch_size} is {batch_size // world}"
        )
    return Mixup(augment.mixup, augment.cutmix, label_smoothing=augment.label_smoothing, num_classes=num_classes)
