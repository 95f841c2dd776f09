"""Laplacian attention: the definition of the package, in the notation of docs/paper.md.

    C = k(Q, Km)   B = k(Km, K)   W = k(Km, Km) + eps I   L = (m/N) inv(W) (B V)
    Z = (1 + gain (C - rowmean(C)) D) / m                  out = Z L + DWC(V)

`ops.laplacian_attention` computes Z L; this layer adds projections, positions, running statistics and the convolution.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from laplacianformer import ops
from laplacianformer.attention._factors import Decomposition, Factors, decomposition, factors_of
from laplacianformer.attention._landmarks import Grid, LandmarkAttention
from laplacianformer.attention._qk_norm import QueryKeyNorm
from laplacianformer.attention._removed import name_replacements
from laplacianformer.attention._rope import cell_rotation
from laplacianformer.attention._whitening import Kind, Whitening
from laplacianformer.ops import _check as check
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._token_mask import TokenMask
from laplacianformer.ops.laplacian_attention.settings import Settings


class LaplacianAttention(LandmarkAttention):
    """Linear attention with the kernel exp(-|q - k|_1 / scale). Called as `attention(x, (H, W))`, or with a mask of the
    tokens that count as `attention(x, (H, W), mask)`; see `GridAttention.forward`.

    Args:
        dim: channels.
        num_heads: heads; 32 channels each in every named model.
        axes: of the grid of tokens: 1 for sequences, 2 for images, 3 for videos and volumes.
        prefix: leading tokens that are not on the grid, such as a class token. Each is a landmark of its own.
        scale: lambda of the kernel.
        grid: landmarks are the keys averaged over that many cells along each axis (or along all, for one number), never
            finer than the tokens: linear cost at every size. "auto": 64, 7 x 7 or 4 x 4 x 4.
        iterations: Newton-Schulz steps for the inverse of W.
        eps: added to the diagonal of W.
        whitening: "running", "synced" or None; see `Whitening`.
        gain: weight of the whitened part. "auto": sqrt(m) for m landmarks, so that what depends on the query is about
            as large as the values. "learned": one parameter per head, starting at the root of the number of cells.
        qk_norm: divide queries and keys by their root mean square and multiply them by a learned scale per head, so
            that the kernel does not vanish as the projections grow.
        rope: rotate queries and keys by position on the grid; needs an even head width, for images a multiple of 4.
        qkv_bias: bias of the projections of queries, keys and values.
        proj_drop: dropout after the output projection.
    """

    mixer = "laplacian"
    kernel_name: str = "laplacian"
    # The start of the Newton-Schulz steps: the faster one, because W is symmetric positive definite.
    newton_schulz_start: Literal["identity", "transpose", "authors"] = "identity"

    @name_replacements
    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        axes: int = 2,
        prefix: int = 0,
        scale: float = 4.0,
        grid: Grid = "auto",
        iterations: int = 6,
        eps: float = 1e-2,
        whitening: Kind | None = "running",
        gain: float | Literal["auto", "learned"] = "auto",
        qk_norm: bool = False,
        rope: bool = True,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        shared = {"rope": rope, "qkv_bias": qkv_bias, "proj_drop": proj_drop}
        super().__init__(dim, num_heads, axes=axes, prefix=prefix, grid=grid, **shared)
        name = type(self).__name__
        check.positive(name, scale=scale, eps=eps)
        check.iterations(name, iterations)
        check.choice(name, ("running", "synced", None), whitening=whitening)
        self.scale, self.iterations, self.eps = float(scale), iterations, float(eps)
        self.whitening = Whitening(whitening, num_heads, self.grid, prefix)
        self.qk_norm = QueryKeyNorm(num_heads, self.scale / self.head_dim) if qk_norm else None
        self.gain: nn.Parameter | float | Literal["auto"] = "auto"
        if gain == "learned":
            self.gain = nn.Parameter(torch.full((num_heads,), math.sqrt(math.prod(self.grid))))
        elif gain != "auto":
            check.number(name, gain=gain)
            self.gain = float(gain)

    def numbers(self) -> dict[str, Any]:
        return {
            **super().numbers(),
            "scale": self.scale,
            "iterations": self.iterations,
            "eps": self.eps,
            "gain": "learned" if isinstance(self.gain, nn.Parameter) else self.gain,
            "whitening": "running" if self.whitening.kind == "synced" else self.whitening.kind,  # equal in evaluation
            "whitening_eps": self.whitening.eps,
            "newton_schulz_start": self.newton_schulz_start,
            "kernel": self.kernel_name,
            "qk_norm": self.qk_norm is not None,
            "gram": "keys",
            "solver": "newton_schulz",  # which `AblationAttention` can change
        }

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        settings = self.settings(q_bhnd, size, self.lay_out(mask, size))
        cells, laid_out = settings["cells"], settings["mask"]
        variance = self.whitening.variance(cells, q_bhnd.shape[0], laid_out)
        out_bhnd, used_hm = ops.laplacian_attention(
            q_bhnd, k_bhnd, v_bhnd, gain=self.gain, variance=variance, **settings
        )
        if isinstance(variance, str):  # of this batch
            self.whitening.update(used_hm, cells, laid_out)
        return out_bhnd

    def settings(self, x_bhnd: Tensor, size: Size, mask: TokenMask | None = None) -> dict[str, Any]:
        """The grids and numbers of `ops.laplacian_attention`."""
        cells = self.cells(size)
        return {
            "size": size,
            "cells": cells,
            "prefix": self.prefix,
            "mask": mask,
            "scale": self.scale,
            "iterations": self.iterations,
            "eps": self.eps,
            "variance_eps": self.whitening.eps,
            "rotation": cell_rotation(x_bhnd, size, size, self.prefix) if self.rope else None,
            "cell_rotation": cell_rotation(x_bhnd, size, cells, self.prefix, mask) if self.rope else None,
        }

    def decompose(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size, mask: TokenMask | None = None) -> Decomposition:
        """The matrices that `mix` never stores; nothing is updated."""
        return decomposition(q_bhnd, k_bhnd, Settings(**self.settings(q_bhnd, size, mask)), self.whitening)

    def factors(self, x: Tensor, size: Size, *, dense: bool = False) -> Factors:
        """C, W, L and Z of these tokens, and for `dense` the N x N attention matrix (O(N^2) memory).

        Nothing is updated: the running variance is read, not changed, also in training mode.
        """
        return factors_of(self, x, size, dense=dense)

    def extra_repr(self) -> str:
        return f"scale={self.scale}, grid={' x '.join(map(str, self.grid))}, iterations={self.iterations}"
