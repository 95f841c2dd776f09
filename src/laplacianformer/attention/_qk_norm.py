"""Queries and keys of one length, so that the size of the kernel does not depend on that of the projections.

    q = s_q q / rms(q)    k = s_k k / rms(k)    |q - k|_1 <= d (s_q + s_k)    |q - k|_2 <= sqrt(d) (s_q + s_k)

Shape suffixes: b batch, h heads, n tokens, d head width.
"""

import torch
from torch import Tensor, nn


class QueryKeyNorm(nn.Module):
    """Queries and keys divided by their root mean square, per token and head, times a learned scale per head.

    Args:
        num_heads: heads.
        start: of the scales. With lambda / d for both, no distance is above 2 lambda, and no kernel below exp(-2).
        tied: one scale for both, where queries and keys are the same.
    """

    def __init__(self, num_heads: int, start: float, tied: bool = False) -> None:
        super().__init__()
        self.query_scale = nn.Parameter(torch.full((num_heads,), start))
        self.key_scale = None if tied else nn.Parameter(torch.full((num_heads,), start))

    def forward(self, q_bhnd: Tensor, k_bhnd: Tensor) -> tuple[Tensor, Tensor]:
        normed_bhnd = _scaled(q_bhnd, self.query_scale)
        return normed_bhnd, normed_bhnd if self.key_scale is None else _scaled(k_bhnd, self.key_scale)


def _scaled(x_bhnd: Tensor, scale_h: Tensor) -> Tensor:
    wide = x_bhnd.double() if x_bhnd.dtype == torch.float64 else x_bhnd.float()
    factor_bhn1 = scale_h[:, None, None] * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return (wide * factor_bhn1).to(x_bhnd.dtype)
