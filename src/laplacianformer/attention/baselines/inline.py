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

from laplacianformer.attention._grid import GridAttention, in_float32
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import without_autocast


class InlineAttention(GridAttention):
    """proj(A V + DWC(V)), injective and linear in the tokens. See `GridAttention` for the arguments."""

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size) -> Tensor:
        with without_autocast(q_bhnd.device):
            q_bhnd, k_bhnd, v_bhnd = in_float32(q_bhnd, k_bhnd, v_bhnd)
            q_bhnd, k_bhnd = self.rotate(q_bhnd, size, size), self.rotate(k_bhnd, size, size)
            centred_bhnd = k_bhnd - k_bhnd.mean(-2, keepdim=True)
            values_bhdd = centred_bhnd.mT @ v_bhnd / (self.head_dim**0.5 * v_bhnd.shape[-2])
            return v_bhnd.mean(-2, keepdim=True) + q_bhnd @ values_bhdd
