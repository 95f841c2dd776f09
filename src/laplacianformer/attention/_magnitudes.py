"""Two ways to keep magnitudes where they are, whatever the size of the kernel: options of `AblationAttention`.

    D_j = 1 / sqrt(var_j + r ms_j)          ms_j = mean over queries of C_j^2: the whitening of c C is that of C
    L   = inv(W) diag(W 1 / B 1) B V        means of V by the keys of a landmark: equal values stay as they are

Averages of var_j + r ms_j are averages of both, so a running one needs no buffer beside that of the variance.

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width.
"""

import torch
from torch import Tensor

from laplacianformer.ops._token_mask import TokenMask

# Where a whole column of a kernel underflows to zero, it has no size to be relative to: no division by zero, and
# no gradient beyond float32.
SMALLEST = 1e-20


def mean_square(c_bhnm: Tensor, mask: TokenMask | None = None) -> Tensor:
    """Of each column over the queries of a batch that count, (heads, m); 0 for a landmark that no item has."""
    if mask is None:
        return c_bhnm.square().mean((0, 2))
    counted = mask.mask_bn[:, None, :, None] & mask.landmarks_bm[:, None, None, :]
    rows = counted.sum((0, 2)).clamp(min=1).to(c_bhnm.dtype)
    return torch.where(counted, c_bhnm, 0).square().sum((0, 2)) / rows


def with_ones(v_bhnd: Tensor, mask: TokenMask | None = None) -> Tensor:
    """V with a further column of ones, so that B gives B V and B 1; zeros for tokens that don't count."""
    ones_bhn1 = torch.ones_like(v_bhnd[..., :1])
    return torch.cat([v_bhnd, ones_bhn1 if mask is None else ones_bhn1.masked_fill(mask.absent_tokens, 0)], dim=-1)


def normalised_sums(summed_bhme: Tensor, w_bhmm: Tensor, eps: float) -> Tensor:
    """diag((W + eps I) 1 / B 1) B V from B [V, 1] and W: constant values are solved for exactly."""
    summed_bhmd, weight_bhm1 = summed_bhme.split([summed_bhme.shape[-1] - 1, 1], dim=-1)
    return (w_bhmm.sum(-1, keepdim=True) + eps) * (summed_bhmd / weight_bhm1.clamp(min=SMALLEST))
