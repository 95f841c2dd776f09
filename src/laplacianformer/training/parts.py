"""What a recipe asks for: the engine, the model, the optimiser with its schedule, the mixing of labels."""

import os
import warnings
from collections.abc import Iterable
from typing import Any

import timm
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from timm.data import Mixup
from timm.optim import create_optimizer_v2, param_groups_weight_decay
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import nn

from laplacianformer._util.errors import InputError
from laplacianformer.detection import mask_rcnn, parameter_groups, retinanet
from laplacianformer.recipes import DetectionOptimise, DetectionRecipe, Optimise, Recipe, Run
from laplacianformer.training.muon import Muon
from laplacianformer.training.sharding import shard

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
    warnings.filterwarnings("ignore", "Grad strides do not match")  # of dimensions of size 1, where they mean nothing
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


def create_detector(recipe: DetectionRecipe, num_classes: int, *, start: bool = True) -> nn.Module:
    """The detector; without `start`, not from the weights that the recipe starts with."""
    detector, data = recipe.detector, recipe.data
    build: Any = {"mask_rcnn": mask_rcnn, "retinanet": retinanet}[detector.name]
    try:
        return build(
            detector.backbone,
            num_classes,
            detector.weights if start else None,
            backbone_args=detector.backbone_args,
            frozen_stages=detector.frozen_stages,
            frozen_statistics=detector.frozen_statistics,
            short_side=data.short_side,
            long_side=data.long_side,
            mean=data.mean,
            std=data.std,
            **detector.args,
        )
    except InputError:
        raise
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        what = f"{detector.name} on {detector.backbone}"
        raise InputError(f"can't create the detector {what}: {' '.join(str(error).split())}") from None


def create_optimiser(model: Any, optimise: Optimise) -> torch.optim.Optimizer:
    """timm's, or `muon32`, with no weight decay on norms, biases and per-head parameters. `model` may be groups of
    parameters."""
    rate = optimise.lr * optimise.batch_size / (optimise.lr_batch or optimise.batch_size)
    try:
        if optimise.optimiser == "muon32":
            groups = model
            if isinstance(model, nn.Module):
                skipped: Iterable[str] = getattr(model, "no_weight_decay", tuple)()
                groups = param_groups_weight_decay(model, optimise.weight_decay, no_weight_decay_list=skipped)
            return Muon(groups, lr=rate, weight_decay=optimise.weight_decay)
        return create_optimizer_v2(model, optimise.optimiser, lr=rate, weight_decay=optimise.weight_decay)
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(f"can't create optimise.optimiser={optimise.optimiser}: {error}") from None


def create_detector_optimiser(model: Any, optimise: DetectionOptimise) -> torch.optim.Optimizer:
    try:
        groups = parameter_groups(model, optimise.weight_decay, optimise.layer_decay)
    except ValueError as error:
        raise InputError(f"optimise.{error}") from None
    return create_optimiser(groups, optimise)


def create_schedule(optimiser: torch.optim.Optimizer, optimise: Optimise, steps_an_epoch: int) -> Scheduler:
    """Linear warm-up, then a cosine or steps; a function of the step alone."""
    warmup = round(optimise.warmup_epochs * steps_an_epoch)
    if isinstance(optimise, DetectionOptimise) and optimise.lr_steps:
        return MultiStepLRScheduler(
            optimiser,
            decay_t=[round(epoch * steps_an_epoch) + 1 for epoch in optimise.lr_steps],  # timm's come a step early
            decay_rate=0.1,
            warmup_t=warmup,
            warmup_lr_init=optimise.warmup_lr,
            warmup_prefix=False,
            t_in_epochs=False,
        )
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
