"""Whitening of the kernel features: the spread of each column of C over the queries, and its running average."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from laplacianformer.ops import _check as check
from laplacianformer.ops._pooling import Size, averaging_matrix
from laplacianformer.ops._precision import without_autocast
from laplacianformer.ops._tracing import has_static_size
from laplacianformer.ops.column_variance import column_variance, synced_column_variance

Kind = Literal["running", "synced"]


class Whitening(nn.Module):
    """Which variance the columns of C are whitened by, as BatchNorm does it: that of the batch in training, a running
    average in evaluation.

    Args:
        kind: "running"; "synced": in training over the batches of all processes of torch.distributed; None: nothing.
        num_heads: heads.
        cells: shape of the stored map of variances; landmarks on another grid use it averaged (or repeated).
        eps: added to variances.
        momentum: weight of a new batch in the running average, once the first 1 / momentum batches are averaged.
    """

    # BatchNorm's names, by which timm finds the statistics to average over processes.
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self, kind: Kind | None, num_heads: int, cells: Size, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        check.positive("Whitening", eps=eps)
        self.kind, self.eps, self.momentum = kind, eps, momentum
        self.paused = False
        if kind is not None:
            self.register_buffer("running_var", torch.full((num_heads, *cells), 1e-3))
            self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long))

    def variance(self, cells: Size, batch: int) -> Tensor | Literal["batch", "synced"] | None:
        """What `ops.laplacian_attention` whitens a batch of this length by. An empty batch has no variance."""
        if self.kind is None:
            return None
        if self.training and batch > 0:
            return "synced" if self.kind == "synced" else "batch"
        return resize(self.running_var, cells).flatten(1)

    def variance_of(self, c_bhnm: Tensor, cells: Size) -> Tensor | None:
        """The same as numbers, (heads, m), for a kernel matrix that is there."""
        variance = self.variance(cells, c_bhnm.shape[0])
        if isinstance(variance, str):
            return (column_variance if variance == "batch" else synced_column_variance)(c_bhnm)
        return variance

    @torch.no_grad()
    def update(self, variance_hm: Tensor | None, cells: Size) -> None:
        """Let the variance of a batch enter the running average, unless updates are paused."""
        if variance_hm is None or self.paused:
            return
        old = self.running_var
        new = resize(variance_hm.unflatten(1, cells), (old.shape[1], old.shape[2])).to(old.dtype)
        self.num_batches_tracked.add_(1)
        weight = (1 / self.num_batches_tracked).clamp(min=self.momentum).to(old.dtype)
        # A batch that is not finite must not spoil every evaluation after it.
        old.lerp_(torch.where(new.isfinite(), new, old), weight)

    def extra_repr(self) -> str:
        return f"{self.kind!r}, eps={self.eps}"


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


def resize(map_hyx: Tensor, cells: Size) -> Tensor:
    """A map with one number per landmark, averaged (or repeated) to another grid of landmarks."""
    if has_static_size(cells) and tuple(map_hyx.shape[1:]) == tuple(cells):
        return map_hyx
    device, dtype = map_hyx.device, map_hyx.dtype
    rows, columns = (averaging_matrix(map_hyx.shape[1 + i], cells[i], device, dtype) for i in (0, 1))
    with without_autocast(device):
        return rows @ map_hyx @ columns.mT
