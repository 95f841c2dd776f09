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

    Processes may have different numbers of rows, some of them with a mask and others without one, but all have the same
    columns. A landmark that no item has gets 0.
    """
    synced = synced and distributed.is_available() and distributed.is_initialized()
    if mask is None and not synced:
        return column_variance(x_bhnm, backend=backend)
    rows = _rows_that_count(x_bhnm, mask)
    weights = _weights_of_this_process(rows) if synced else None

    def mean(terms: Tensor) -> Tensor:
        here = terms.mean((0, 2)) if mask is None else terms.sum((0, 2)) / rows.clamp(min=1)
        if weights is None:
            return here
        own, all_of_them = weights
        return _SumOfAll.apply(here * own) / all_of_them

    def counted(terms: Tensor) -> Tensor:
        if mask is None:
            return terms
        return torch.where(mask.mask_bn[:, None, :, None] & mask.landmarks_bm[:, None, None, :], terms, 0)

    mean_hm = mean(counted(x_bhnm))
    return mean(counted(x_bhnm - mean_hm[:, None]).square())


def _rows_that_count(x_bhnm: Tensor, mask: TokenMask | None) -> Tensor:
    """How many rows count, for each column: (m,)."""
    if mask is None:
        return x_bhnm.new_full(x_bhnm.shape[-1:], x_bhnm.shape[0] * x_bhnm.shape[2])
    return (mask.mask_bn.sum(1, keepdim=True) * mask.landmarks_bm).sum(0).to(x_bhnm.dtype)


def _weights_of_this_process(rows_m: Tensor) -> tuple[Tensor, Tensor]:
    """The weights with which the mean of each column enters that of all processes, and the sums of these weights.

    They are 1 where all have equally many rows. The same calls with and without a mask: processes wait for each other.
    """
    most = rows_m.clone()
    distributed.all_reduce(most, distributed.ReduceOp.MAX)
    own = rows_m / most.clamp(min=1)
    return own, _SumOfAll.apply(own).clamp(min=1)


class _SumOfAll(torch.autograd.Function):
    """The sum over the processes. Each loss depends on the inputs of all: gradients are added up likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total: Tensor = _SumOfAll.apply(gradient)  # not forward: it may be differentiated again
        return total
