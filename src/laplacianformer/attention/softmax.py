"""Softmax attention in the same slot: same projections, positions and local branch, quadratic in the tokens."""

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer.attention.grid import GridAttention, Size


class SoftmaxAttention(GridAttention):
    """proj(softmax(q k' / sqrt(d)) v + DWC(v)). See `GridAttention` for the arguments."""

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size) -> Tensor:
        rows, columns = (torch.arange(length, device=q_bhnd.device).float() for length in size)
        q_bhnd, k_bhnd = self.rotate(q_bhnd, rows, columns), self.rotate(k_bhnd, rows, columns)
        return F.scaled_dot_product_attention(q_bhnd, k_bhnd, v_bhnd)
