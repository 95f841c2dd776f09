"""Softmax attention in the same slot: same projections, positions and local branch, quadratic in the tokens."""

from torch import Tensor
from torch.nn import functional as F

from laplacianformer.attention._grid import GridAttention, allowed
from laplacianformer.ops._pooling import Size


class SoftmaxAttention(GridAttention):
    """proj(softmax(q k' / sqrt(d)) v + DWC(v)). See `GridAttention` for the arguments."""

    mixer = "softmax"

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        q_bhnd, k_bhnd = self.rotate(q_bhnd, size), self.rotate(k_bhnd, size)
        return F.scaled_dot_product_attention(q_bhnd, k_bhnd, v_bhnd, attn_mask=allowed(mask))
