"""cosFormer: Qin, Sun, Deng, Li, Wei, Lv, Yan, Kong and Zhong, "cosFormer: Rethinking Softmax in Attention", 2022.

    A_ij = relu(q_i)' relu(k_j) cos(pi/2 (i - j) / N), divided by its row sums

The cosine of a difference is a sum of two products, so with a_i = pi/2 i / N

    phi_i(x) = [relu(x) cos a_i, relu(x) sin a_i]        out = phi(Q) (phi(K)' V) / (phi(Q) (phi(K)' 1))

O(N d^2). Positions i are those of the row-major order of the grid, 0 ... N - 1: a token is near its neighbours in
its row, and W positions away from those above and below. A query without a positive channel has no weights: zeros.

Shape suffixes: b batch, h heads, n tokens, d head width, f = 2 d features.
"""

import math

import torch
from torch import Tensor

from laplacianformer.attention.baselines._feature_maps import FeatureMapAttention
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._token_mask import grid_coordinates, grid_extents


class CosformerAttention(FeatureMapAttention):
    """proj(A V + DWC(V)) with relu features weighed by the cosine of a distance. See `GridAttention`."""

    mixer = "cosformer"

    def features(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        angle = self.angles(q_bhnd, size, mask)
        cos, sin = angle.cos(), angle.sin()
        q_bhnf, k_bhnf = (torch.cat([x.relu() * cos, x.relu() * sin], dim=-1) for x in (q_bhnd, k_bhnd))
        return q_bhnf, k_bhnf

    def angles(self, x_bhnd: Tensor, size: Size, mask: Tensor | None) -> Tensor:
        """a_i, (N, 1), or (B, 1, N, 1) with a mask: positions are then those on the item's own grid."""
        n, dtype, device = x_bhnd.shape[-2], x_bhnd.dtype, x_bhnd.device
        if mask is None:
            return torch.arange(n, dtype=dtype, device=device)[:, None] * (math.pi / (2 * n))
        lengths = grid_extents(mask, size, self.prefix)
        position, count = torch.zeros_like(lengths[0])[:, None], torch.ones_like(lengths[0])[:, None]
        for length, coordinate in zip(lengths, grid_coordinates(size, device), strict=True):
            position, count = position * length[:, None] + coordinate, count * length[:, None]
        before = torch.arange(self.prefix, device=device).expand(len(mask), -1)
        position = torch.cat([before, self.prefix + position], dim=1)
        angle_bn = position.to(dtype) * (math.pi / 2) / (self.prefix + count).clamp(min=1)
        return angle_bn[:, None, :, None]
