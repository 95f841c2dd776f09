"""What the baselines with a feature map share: attention by phi(q)'phi(k), in which the sum over keys comes first.

    A = phi(Q) phi(K)' / (phi(Q) phi(K)' 1)        out = phi(Q) (phi(K)' V) / (phi(Q) (phi(K)' 1))

Rows of A sum to one, and no weight is negative where phi is not. Rotary positions rotate queries and keys before
phi: rotating features would make some of them negative. All in float32 (float64 for float64 inputs).

Shape suffixes: b batch, h heads, n tokens, d head width, f features.
"""

from torch import Tensor

from laplacianformer.attention._grid import GridAttention, in_float32, mean_over_tokens, token_count
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import without_autocast

# A query whose features, or those of all keys, underflow to zero has no weights: it gets zeros, not NaN.
SMALLEST = 1e-12


class FeatureMapAttention(GridAttention):
    """proj(A V + DWC(V)), linear in the tokens. Subclasses define `features`. See `GridAttention` for the arguments."""

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        with without_autocast(q_bhnd.device):
            q_bhnd, k_bhnd, v_bhnd = in_float32(q_bhnd, k_bhnd, v_bhnd)
            q_bhnd, k_bhnd = self.rotate(q_bhnd, size), self.rotate(k_bhnd, size)
            q_bhnf, k_bhnf = self.features(q_bhnd, k_bhnd, size, mask)
            # Means, not sums: SMALLEST then means the same for every number of tokens. Values that don't count are 0.
            values_bhfd = k_bhnf.mT @ v_bhnd / token_count(v_bhnd, mask)
            weights_bhn1 = q_bhnf @ mean_over_tokens(k_bhnf, mask).mT
            return q_bhnf @ values_bhfd / weights_bhn1.clamp(min=SMALLEST)

    def features(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """phi(Q) and phi(K), (B, heads, N, f) each, none negative; anything finite where the mask is False.

        A factor of a row of phi(Q), or of all of phi(K), makes no difference.
        """
        raise TypeError(f"{type(self).__name__} must define features")
