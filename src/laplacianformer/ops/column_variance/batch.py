"""The variance of columns that whitens a batch: of one process or of all, over the tokens that count."""

from typing import Any

import torch
from torch import Tensor, distributed

from laplacianformer.ops._token_mask import TokenMask
from laplacianformer.ops.column_variance.op import column_variance


def batch_variance(
    x_bhnm: Tensor, mask: TokenMask | None = None, *, synced: bool = False, backend: str | None = None
) -> Tensor:
    """`column_variance` over the rows that count, and for `synced` over those of all processes, (heads, m).

    Without a mask, all processes must have equally many rows. A landmark that no item has gets 0.
    """
    synced = synced and distributed.is_available() and distributed.is_initialized()
    if mask is not None:
        return _masked_variance(x_bhnm, mask, synced)
    if not synced:
        return column_variance(x_bhnm, backend=backend)
    mean_hm = _SumOfAll.apply(x_bhnm.mean((0, 2))) / distributed.get_world_size()
    return _SumOfAll.apply((x_bhnm - mean_hm[:, None]).square().mean((0, 2))) / distributed.get_world_size()


def _masked_variance(x_bhnm: Tensor, mask: TokenMask, synced: bool) -> Tensor:
    there = mask.mask_bn[:, None, :, None] & mask.landmarks_bm[:, None, None, :]

    def mean(terms: Tensor) -> Tensor:
        sums, counts = terms.sum((0, 2)), there.sum((0, 2)).to(x_bhnm.dtype)
        if synced:
            sums, counts = _SumOfAll.apply(sums), _SumOfAll.apply(counts)
        return sums / counts.clamp(min=1)

    mean_hm = mean(torch.where(there, x_bhnm, 0))
    return mean(torch.where(there, x_bhnm - mean_hm[:, None], 0).square())


class _SumOfAll(torch.autograd.Function):
    """The sum over the processes. Each loss depends on the inputs of all: gradients are added up likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _SumOfAll.forward(ctx, gradient)
