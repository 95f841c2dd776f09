"""cosFormer: Qin, Sun, Deng, Li, Wei, Lv, Yan, Kong and Zhong, "cosFormer: Rethinking Softmax in Attention", 2022.

    A_ij = relu(q_i)' relu(k_j) cos(pi/2 (i - j) / N), divided by its row sums

The cosine of a difference is a sum of two products, so with a_i = pi/2 i / N

    phi_i(x) = [relu(x) cos a_i, relu(x) sin a_i]        out = phi(Q) (phi(K)' V) / (phi(Q) (phi(K)' 1))

O(N d^2). Places i are those of the row-major order of the grid, 0 ... N - 1: a token is near its neighbours in
its row, and W positions away from those above and below. A query without a positive channel has no weights: zeros.

Shape suffixes: b batch, h heads, n tokens, d head width, f = 2 d features.
"""

import math

import torch
from torch import Tensor

from laplacianformer.attention.baselines._feature_maps import FeatureMapAttention


class CosformerAttention(FeatureMapAttention):
    """proj(A V + DWC(V)) with relu features weighed by the cosine of a distance. See `GridAttention`."""

    def features(self, q_bhnd: Tensor, k_bhnd: Tensor) -> tuple[Tensor, Tensor]:
        n = q_bhnd.shape[-2]
        angle_n1 = torch.arange(n, dtype=q_bhnd.dtype, device=q_bhnd.device)[:, None] * (math.pi / (2 * n))
        cos_n1, sin_n1 = angle_n1.cos(), angle_n1.sin()
        q_bhnf, k_bhnf = (torch.cat([x.relu() * cos_n1, x.relu() * sin_n1], dim=-1) for x in (q_bhnd, k_bhnd))
        return q_bhnf, k_bhnf
