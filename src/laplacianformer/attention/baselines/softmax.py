"""Softmax attention in the same slot: same projections, positions and local branch, quadratic in the tokens."""

from torch import Tensor
from torch.nn import functional as F

from laplacianformer.attention._grid import GridAttention
from laplacianformer.ops._pooling import Size


class SoftmaxAttention(GridAttention):
    """proj(softmax(q k' / sqrt(d)) v + DWC(v)). See `GridAttention` for the arguments."""

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        q_bhnd, k_bhnd = self.rotate(q_bhnd, size), self.rotate(k_bhnd, size)
        return F.scaled_dot_product_attention(q_bhnd, k_bhnd, v_bhnd, attn_mask=allowed(mask))


def allowed(mask_bn: Tensor | None) -> Tensor | None:
    """Which keys queries may attend to, (B, 1, 1, N). Where none counts, all: their values are zeros, not NaN."""
    return None if mask_bn is None else (mask_bn | ~mask_bn.any(-1, keepdim=True))[:, None, None, :]
