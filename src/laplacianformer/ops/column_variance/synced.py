"""The variance of columns over the batches of all training processes."""

from typing import Any

import torch
from torch import Tensor, distributed

from laplacianformer.ops.column_variance.op import column_variance


def synced_column_variance(x: Tensor, *, backend: str | None = None) -> Tensor:
    """`column_variance` over the rows of all processes of torch.distributed, which must have equally many."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return column_variance(x, backend=backend)
    mean_hm = _MeanOfAll.apply(x.mean((0, 2)))
    return _MeanOfAll.apply((x - mean_hm[:, None]).square().mean((0, 2)))


class _MeanOfAll(torch.autograd.Function):
    """The mean over the processes. Each loss depends on the inputs of all: gradients are averaged likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(x)
        return x / distributed.get_world_size()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _MeanOfAll.forward(ctx, gradient)
