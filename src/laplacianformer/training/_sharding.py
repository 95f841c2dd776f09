"""Weights that are sharded over the processes (FSDP): how whole ones are gathered for files, and sharded again."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from laplacianformer.model._blocks import Block

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard every block, and the rest of the model, over the processes."""
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded; every process has to call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def model_state(model: nn.Module, *, sharded: bool) -> dict[str, Any]:
    """The whole weights, for the first process; every process has to call this."""
    return get_model_state_dict(model, options=_WHOLE) if sharded else model.state_dict()


def load_model_state(model: nn.Module, state: dict[str, Any], *, sharded: bool) -> None:
    """Put back what `model_state` gave."""
    if sharded:
        set_model_state_dict(model, state, options=_WHOLE)
    else:
        model.load_state_dict(state)


def optimiser_state(model: nn.Module, optimiser: torch.optim.Optimizer, *, sharded: bool) -> dict[str, Any]:
    """The whole state, for the first process; every process has to call this."""
    return get_optimizer_state_dict(model, optimiser, options=_WHOLE) if sharded else optimiser.state_dict()


def load_optimiser_state(
    model: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any], *, sharded: bool
) -> None:
    """Put back what `optimiser_state` gave."""
    if sharded:
        set_optimizer_state_dict(model, optimiser, state, options=_WHOLE)
    else:
        optimiser.load_state_dict(state)
