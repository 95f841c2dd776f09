"""The matrices behind the attention, stored, for looking inside and for layers that exchange one of them.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer.attention._grid import in_float32
from laplacianformer.attention._whitening import Whitening
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import without_autocast
from laplacianformer.ops.laplacian_attention import reference
from laplacianformer.ops.laplacian_attention.reference import Gain, by_head
from laplacianformer.ops.laplacian_attention.settings import Settings


class Factors(NamedTuple):
    """What a layer computed from one input. N tokens, m landmarks."""

    c: Tensor  # (B, heads, N, m): kernel of queries and landmarks
    w: Tensor  # (B, heads, m, m): kernel among landmarks, without eps
    landmark_values: Tensor  # (B, heads, m, d): L
    z: Tensor  # (B, heads, N, m): the injective map
    dense: Tensor | None  # (B, heads, N, N): the attention matrix, the global branch being dense @ V


@dataclass(frozen=True)
class Decomposition:
    """C, W and D for given queries and keys, and the solve that turns values into those of the landmarks."""

    c_bhnm: Tensor
    gram: Callable[[], Tensor]  # W, without eps
    variance: Tensor | None  # that whitens, (heads, m) where it may enter a running average
    factor: Tensor | None  # D: (..., heads, m, 1), a full (B, heads, m, m), or None for the identity
    solve: Callable[[Tensor], Tensor]  # V -> L
    full: bool = False  # whether D is a full matrix

    def whiten(self, x_bhmd: Tensor) -> Tensor:
        """D x."""
        if self.factor is None:
            return x_bhmd
        return self.factor @ x_bhmd if self.full else self.factor * x_bhmd

    def injective_map(self, gain: Gain) -> Tensor:
        """Z = (1 + gain (C - rowmean(C)) D) / m."""
        centred = self.c_bhnm - self.c_bhnm.mean(-1, keepdim=True)
        m = centred.shape[-1]
        return (1 + by_head(gain, m, centred) * self.whiten(centred.mT).mT) / m


def decomposition(q_bhnd: Tensor, k_bhnd: Tensor, settings: Settings, whitening: Whitening) -> Decomposition:
    """The matrices of `ops.laplacian_attention`. Nothing is updated."""
    inputs = reference.kernel_inputs(q_bhnd, k_bhnd, settings)
    c_bhnm = reference.kernel_of_queries(inputs, settings)
    variance = whitening.variance_of(c_bhnm, settings.cells, settings.mask)
    return Decomposition(
        c_bhnm,
        gram=lambda: ops.laplacian_kernel(inputs.km, inputs.km, settings.scale),
        variance=variance,
        factor=reference.whitening_factor(variance, settings.variance_eps),
        solve=lambda v_bhnd: reference.landmark_values(inputs, v_bhnd, settings),
    )


class Decomposable(Protocol):
    """A layer with these matrices."""

    @property
    def gain(self) -> Gain: ...

    def project(self, x: Tensor, size: Size) -> tuple[Tensor, Tensor, Tensor]: ...

    def decompose(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size) -> Decomposition: ...


@torch.no_grad()
def factors_of(layer: Decomposable, x: Tensor, size: Size, *, dense: bool) -> Factors:
    """C, W, L and Z of these tokens, and for `dense` the N x N attention matrix (O(N^2) memory)."""
    projected = layer.project(x, size)
    with without_autocast(x.device):
        q, k, v = in_float32(*projected)
        found = layer.decompose(q, k, size)
        z = found.injective_map(layer.gain)
        matrix = None
        if dense:
            identity = torch.eye(v.shape[-2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
            matrix = z @ found.solve(identity)
        return Factors(found.c_bhnm, found.gram(), found.solve(v), z, matrix)
