"""Whitening of the kernel features: what C - rowmean(C) is multiplied with, from the spread of C over the queries."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn

from laplacianformer.attention.landmarks import averaging_matrix, known
from laplacianformer.ops import check, column_variance, inverse_sqrt

Kind = Literal["running", "instance", "full"]
KINDS = ("running", "instance", "full", None)


class Whitening(nn.Module):
    """D, the inverse standard deviation of each column of C (or, for "full", the inverse square root of
    the covariance of the columns).

    Args:
        kind: "running": over batch and queries in training, a running average in evaluation, as BatchNorm;
            "instance": over the queries of each image; "full": the m x m covariance of each image; None: D = I.
        num_heads: heads.
        cells: shape of the stored map of variances; landmarks on another grid use it averaged (or repeated).
        eps: added to variances.
        momentum: weight of a new batch in the running average, once the first 1 / momentum batches are averaged.
        sync: in training, "running" takes the batches of all processes of torch.distributed together.
    """

    # BatchNorm's names, by which timm finds the statistics to average over processes.
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        kind: Kind | None,
        num_heads: int,
        cells: tuple[int, int],
        eps: float = 1e-5,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        super().__init__()
        check.choice("Whitening", KINDS, kind=kind)
        check.positive("Whitening", eps=eps)
        self.kind, self.eps, self.momentum, self.sync = kind, eps, momentum, sync
        self.paused = False
        if kind == "running":
            self.register_buffer("running_var", torch.full((num_heads, *cells), 1e-3))
            self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long))

    def needs_kernel(self) -> bool:
        """Whether the factor depends on C itself, so that C has to be stored."""
        return self.kind in ("instance", "full") or (self.kind == "running" and self.training)

    def factor(
        self, c_bhnm: Tensor | None, cells: tuple[int, int], *, update: bool = True, of_batch: bool = False
    ) -> Tensor | None:
        """(..., heads, m, 1) for a diagonal factor, (B, heads, m, m) for a full one, None for the identity.

        `c_bhnm` may be None unless `needs_kernel()`; `update` lets a training batch enter the running average;
        `of_batch` takes the variance of the batch, as in training, also in evaluation.
        """
        if self.kind is None:
            return None
        if c_bhnm is None or (self.kind == "running" and not ((self.training or of_batch) and c_bhnm.shape[0] > 0)):
            variance = self.evaluated_variance(cells)
        elif self.kind == "running":
            variance = _variance_of_all(c_bhnm) if self.sync else column_variance(c_bhnm)
            if update:
                self.update(variance, cells)
        elif self.kind == "instance":
            # var warns about an empty batch; its sum is as empty.
            variance = c_bhnm.var(-2, correction=0) if c_bhnm.shape[0] > 0 else c_bhnm.sum(-2)
        else:
            centred = c_bhnm - c_bhnm.mean(-2, keepdim=True)
            return inverse_sqrt(centred.mT @ centred / centred.shape[-2], self.eps)
        return (variance + self.eps).rsqrt()[..., None]

    def evaluated_variance(self, cells: tuple[int, int]) -> Tensor:
        """The running average for a grid of landmarks, (heads, m)."""
        return resize(self.running_var, cells).flatten(1)

    @torch.no_grad()
    def update(self, variance_hm: Tensor, cells: tuple[int, int]) -> None:
        """Let a batch enter the running average, unless that is paused."""
        if self.paused:
            return
        old = self.running_var
        new = resize(variance_hm.unflatten(1, cells), (old.shape[1], old.shape[2])).to(old.dtype)
        self.num_batches_tracked.add_(1)
        weight = (1 / self.num_batches_tracked).clamp(min=self.momentum).to(old.dtype)
        # A batch that is not finite must not spoil every evaluation after it.
        old.lerp_(torch.where(new.isfinite(), new, old), weight)

    def multiply(self, factor: Tensor | None, x_bhmd: Tensor) -> Tensor:
        """D x."""
        if factor is None:
            return x_bhmd
        return factor @ x_bhmd if self.kind == "full" else factor * x_bhmd

    def extra_repr(self) -> str:
        return f"{self.kind!r}, eps={self.eps}"


def _variance_of_all(c_bhnm: Tensor) -> Tensor:
    """The variance of each column over the rows of all processes, which have equally many."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return column_variance(c_bhnm)
    mean_hm = _MeanOfAll.apply(c_bhnm.mean((0, 2)))
    return _MeanOfAll.apply((c_bhnm - mean_hm[:, None]).square().mean((0, 2)))


class _MeanOfAll(torch.autograd.Function):
    """The mean over the processes. Each one's loss depends on every one's input: gradients are averaged likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(x)
        return x / distributed.get_world_size()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _MeanOfAll.forward(ctx, gradient)


@contextmanager
def paused_updates(module: nn.Module) -> Iterator[None]:
    """A block in which the running statistics in `module` stay as they are, for recomputation in backward."""
    layers = [layer for layer in module.modules() if isinstance(layer, Whitening)]
    for layer in layers:
        layer.paused = True
    try:
        yield
    finally:
        for layer in layers:
            layer.paused = False


def resize(map_hyx: Tensor, cells: tuple[int, int]) -> Tensor:
    """A map of one number a landmark, averaged (or repeated) to another grid of landmarks."""
    if known(cells) and tuple(map_hyx.shape[1:]) == tuple(cells):
        return map_hyx
    device, dtype = map_hyx.device, map_hyx.dtype
    rows, columns = (averaging_matrix(map_hyx.shape[1 + i], cells[i], device, dtype) for i in (0, 1))
    return rows @ map_hyx @ columns.mT
