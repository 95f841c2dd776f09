"""Whitening of the kernel features: what C - rowmean(C) is multiplied with, from the spread of C over the queries."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from laplacianformer.attention.landmarks import averaging_matrix, known
from laplacianformer.ops import check, inverse_sqrt

Kind = Literal["running", "instance", "full"]
KINDS = ("running", "instance", "full", None)


_paused = False


@contextmanager
def paused_updates() -> Iterator[None]:
    """A block in which running statistics stay as they are, for recomputation in backward."""
    global _paused
    previous, _paused = _paused, True
    try:
        yield
    finally:
        _paused = previous


class Whitening(nn.Module):
    """D, the inverse standard deviation of each column of C (or, for "full", the inverse square root of
    the covariance of the columns).

    Args:
        kind: "running": over batch and queries in training, a running average in evaluation, as BatchNorm;
            "instance": over the queries of each image; "full": the m x m covariance of each image; None: D = I.
        num_heads: heads.
        cells: shape of the stored map of variances; maps of other sizes are averaged to it and from it.
        eps: added to variances.
        momentum: weight of a new batch in the running average, once the first 1 / momentum batches are averaged.
    """

    variance: Tensor
    batches: Tensor

    def __init__(
        self, kind: Kind | None, num_heads: int, cells: tuple[int, int], eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        check.choice("Whitening", KINDS, kind=kind)
        check.positive("Whitening", eps=eps)
        self.kind, self.eps, self.momentum = kind, eps, momentum
        if kind == "running":
            self.register_buffer("variance", torch.full((num_heads, *cells), 0.02))
            self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def needs_kernel(self) -> bool:
        """Whether the factor depends on C itself, so that C has to be stored."""
        return self.kind in ("instance", "full") or (self.kind == "running" and self.training)

    def factor(self, c_bhnm: Tensor | None, cells: tuple[int, int], *, update: bool = True) -> Tensor | None:
        """(..., heads, m, 1) for a diagonal factor, (B, heads, m, m) for a full one, None for the identity.

        `c_bhnm` may be None unless `needs_kernel()`; `update` lets a training batch enter the running average.
        """
        if self.kind is None:
            return None
        if c_bhnm is None or (self.kind == "running" and not (self.training and c_bhnm.shape[0] > 0)):
            variance = resize(self.variance, cells).flatten(1)
        elif self.kind == "running":
            variance = c_bhnm.transpose(0, 1).flatten(1, 2).var(1, correction=0)
            if update and not _paused:
                self.update(variance, cells)
        elif self.kind == "instance":
            # var warns about an empty batch; its sum is as empty.
            variance = c_bhnm.var(-2, correction=0) if c_bhnm.shape[0] > 0 else c_bhnm.sum(-2)
        else:
            centred = c_bhnm - c_bhnm.mean(-2, keepdim=True)
            return inverse_sqrt(centred.mT @ centred / centred.shape[-2], self.eps)
        return (variance + self.eps).rsqrt()[..., None]

    @torch.no_grad()
    def update(self, variance_hm: Tensor, cells: tuple[int, int]) -> None:
        self.batches += 1
        weight = (1 / self.batches).clamp(min=self.momentum)
        new = resize(variance_hm.unflatten(1, cells), (self.variance.shape[1], self.variance.shape[2]))
        self.variance.lerp_(new.to(self.variance.dtype), weight.to(self.variance.dtype))

    def multiply(self, factor: Tensor | None, x_bhmd: Tensor) -> Tensor:
        """D x."""
        if factor is None:
            return x_bhmd
        return factor @ x_bhmd if self.kind == "full" else factor * x_bhmd

    def extra_repr(self) -> str:
        return f"{self.kind!r}, eps={self.eps}"


def resize(map_hyx: Tensor, cells: tuple[int, int]) -> Tensor:
    """A map of one number a landmark, averaged (or repeated) to another grid of landmarks."""
    if known(cells) and tuple(map_hyx.shape[1:]) == tuple(cells):
        return map_hyx
    device, dtype = map_hyx.device, map_hyx.dtype
    rows, columns = (averaging_matrix(map_hyx.shape[1 + i], cells[i], device, dtype) for i in (0, 1))
    return rows @ map_hyx @ columns.mT
