"""InLine: Han, Pu, Xia, Han, Pan, Li, Lu, Song and Huang, "Bridging the Divide: Reconsidering Softmax and Linear
Attention", 2024.

    A   = (1 + (Q K' - rowmean(Q K')) / sqrt(d)) / N
    out = mean(V) + Q (K - mean(K))' V / (sqrt(d) N)

Row means are subtracted where linear attention divides by row sums. Rows still sum to one, weights may be negative,
and different queries get different weights as long as the keys, less their mean, span all d channels. The feature map
is the identity, and the scale 1 / (sqrt(d) N) that of the authors' code. Their local term, a 3 x 3 filter predicted
from the mean token, is left to the local branch that every mixer here shares. O(N d^2).

Shape suffixes: b batch, h heads, n tokens, d head width.
"""

from torch import Tensor

from laplacianformer.attention._grid import GridAttention, in_float32, mean_over_tokens, token_count
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import without_autocast


class InlineAttention(GridAttention):
    """proj(A V + DWC(V)), injective and linear in the tokens. See `GridAttention` for the arguments."""

    mixer = "inline"

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        with without_autocast(q_bhnd.device):
            q_bhnd, k_bhnd, v_bhnd = in_float32(q_bhnd, k_bhnd, v_bhnd)
            q_bhnd, k_bhnd = self.rotate(q_bhnd, size), self.rotate(k_bhnd, size)
            mean_k, mean_v = mean_over_tokens(k_bhnd, mask), mean_over_tokens(v_bhnd, mask)
            # Values that don't count are zeros, so their keys need no mask here.
            values_bhdd = (k_bhnd - mean_k).mT @ v_bhnd / (self.head_dim**0.5 * token_count(v_bhnd, mask))
            return mean_v + q_bhnd @ values_bhdd
