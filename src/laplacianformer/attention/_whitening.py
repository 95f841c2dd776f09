"""Whitening of the kernel features: the spread of each column of C over the queries, and its running average."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from laplacianformer.ops import _check as check
from laplacianformer.ops import _token_mask as token_mask
from laplacianformer.ops._pooling import Size, along_axes, averaging_matrix
from laplacianformer.ops._precision import without_autocast
from laplacianformer.ops._token_mask import TokenMask
from laplacianformer.ops._tracing import has_static_size
from laplacianformer.ops.column_variance import batch_variance

Kind = Literal["running", "synced"]


class _Statistics(nn.BatchNorm1d):
    """What `torch.optim.swa_utils.update_bn` finds in a whitening: it restarts running averages, and sets their
    momentum, only in instances of torch's batch norm. There is nothing else in it."""

    def __init__(self, momentum: float) -> None:
        super().__init__(1, momentum=momentum, affine=False, track_running_stats=False)
        self.restart = False

    def reset_running_stats(self) -> None:
        self.restart = True


class Whitening(nn.Module):
    """Which variance the columns of C are whitened by, as BatchNorm does it: that of the batch in training, a running
    average in evaluation.

    Args:
        kind: "running"; "synced": in training over the batches of all processes of torch.distributed; None: nothing.
        num_heads: heads.
        cells: shape of the stored map of variances; landmarks on another grid use it averaged (or repeated).
        prefix: tokens before the grid, whose variances are stored apart.
        eps: added to variances.
        momentum: weight of a new batch in the running average, once the first 1 / momentum batches are averaged.
    """

    # BatchNorm's names, by which timm finds the statistics to average over processes.
    running_var: Tensor
    prefix_running_var: Tensor  # with tokens before the grid only
    num_batches_tracked: Tensor

    def __init__(
        self,
        kind: Kind | None,
        num_heads: int,
        cells: Size,
        prefix: int = 0,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        check.positive("Whitening", eps=eps)
        self.kind, self.prefix, self.eps = kind, prefix, eps
        self.paused = False
        if kind is not None:
            self.register_buffer("running_var", torch.full((num_heads, *cells), 1e-3))
            self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long))
            self.statistics = _Statistics(momentum)
            if prefix:
                self.register_buffer("prefix_running_var", torch.full((num_heads, prefix), 1e-3))

    def variance(
        self, cells: Size, batch: int, mask: TokenMask | None = None
    ) -> Tensor | Literal["batch", "synced"] | None:
        """What `ops.laplacian_attention` whitens a batch of this length by. An empty batch has no variance."""
        if self.kind is None:
            return None
        if self.training and batch > 0:
            return "synced" if self.kind == "synced" else "batch"
        if mask is None:
            return self._with_prefix(resize(self.running_var, cells).flatten(1))
        bounds = [
            token_mask.cell_bounds(torch.full_like(own, stored), own, most)
            for own, stored, most in zip(mask.cells, self._stored(), cells, strict=True)
        ]
        with without_autocast(self.running_var.device):
            return self._with_prefix(token_mask.resize(self.running_var, bounds).flatten(2))

    def variance_of(self, c_bhnm: Tensor, cells: Size, mask: TokenMask | None = None) -> Tensor | None:
        """The same as numbers, (heads, m) or (B, heads, m), for a kernel matrix that is there."""
        variance = self.variance(cells, c_bhnm.shape[0], mask)
        if isinstance(variance, str):
            return batch_variance(c_bhnm, mask, synced=variance == "synced")
        return variance

    @torch.no_grad()
    def update(self, variance_hm: Tensor | None, cells: Size, mask: TokenMask | None = None) -> None:
        """Add the variance of a batch to the running average, unless updates are paused."""
        if variance_hm is None or self.paused:
            return
        if getattr(self.statistics, "restart", False):  # convert_sync_batchnorm leaves another module in its place
            self.num_batches_tracked.zero_()  # which gives the next batch the weight 1
            self.statistics.restart = False
        self.num_batches_tracked.add_(1)
        momentum = self.statistics.momentum or 0.0  # None, in torch, for the mean of all batches
        weight = (1 / self.num_batches_tracked).clamp(min=momentum).to(self.running_var.dtype)
        before, on_grid = variance_hm.split([self.prefix, variance_hm.shape[1] - self.prefix], dim=1)
        if mask is None:
            new = resize(on_grid.unflatten(1, cells), self._stored())
        else:
            new = self._map_of_seen(on_grid.unflatten(1, cells), mask)
        _average(self.running_var, new, weight)
        if self.prefix:
            if mask is not None:
                before = before.masked_fill(~mask.mask_bn[:, : self.prefix].any(0), torch.nan)
            _average(self.prefix_running_var, before, weight)

    def _stored(self) -> Size:
        return tuple(self.running_var.shape[1:])

    def _with_prefix(self, variance: Tensor) -> Tensor:
        """(..., heads, m): the variances of the tokens before the grid, then those on it."""
        if not self.prefix:
            return variance
        before = self.prefix_running_var.expand(*variance.shape[:-1], -1)
        return torch.cat([before, variance], dim=-1)

    def _map_of_seen(self, map_hyx: Tensor, mask: TokenMask) -> Tensor:
        """A map of a batch with a mask, averaged to the stored grid: NaN where no item had a landmark."""
        seen = mask.landmarks_bm[:, self.prefix :].any(0).unflatten(0, tuple(map_hyx.shape[1:]))
        bounds = [
            token_mask.cell_bounds(own.amax(0, keepdim=True), torch.full_like(own[:1], stored), stored)
            for own, stored in zip(mask.cells, self._stored(), strict=True)
        ]
        with without_autocast(map_hyx.device):
            counted = token_mask.resize(seen.to(map_hyx.dtype)[None], bounds)[0]
            return token_mask.resize(map_hyx * seen, bounds)[0] / counted

    def extra_repr(self) -> str:
        return f"{self.kind!r}, eps={self.eps}"


def _average(old: Tensor, new: Tensor, weight: Tensor) -> None:
    """Add a new variance to a running one. A batch that is not finite must not spoil every evaluation after it."""
    new = new.to(old.dtype)
    old.lerp_(torch.where(new.isfinite(), new, old), weight)


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
    matrices = [averaging_matrix(*lengths, device, dtype) for lengths in zip(map_hyx.shape[1:], cells, strict=True)]
    with without_autocast(device):
        if len(cells) == 2:  # rows first: the order of additions that statistics of images always had
            rows, columns = matrices
            if not has_static_size(cells):  # as stacks: what `matmul` would fold is not known for every size
                rows, columns = (matrix.expand(len(map_hyx), -1, -1) for matrix in matrices)
            return rows @ map_hyx @ columns.mT
        return along_axes(map_hyx[..., None], matrices).squeeze(-1)
