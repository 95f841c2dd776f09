"""Linear attention with elu(x) + 1: Katharopoulos, Vyas, Pappas and Fleuret, "Transformers are RNNs", 2020.

    phi(x) = elu(x) + 1, channel by channel        out = phi(Q) (phi(K)' V) / (phi(Q) (phi(K)' 1))

O(N d^2). Queries whose features are multiples of each other get the same weights: the map is not injective.

Shape suffixes: b batch, h heads, n tokens, d head width.
"""

from torch import Tensor

from laplacianformer.attention.baselines._feature_maps import FeatureMapAttention
from laplacianformer.ops._pooling import Size


class LinearAttention(FeatureMapAttention):
    """proj(A V + DWC(V)) with A = phi(Q) phi(K)' divided by its row sums. See `GridAttention` for the arguments."""

    mixer = "linear"

    def features(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return _elu_plus_one(q_bhnd), _elu_plus_one(k_bhnd)


def _elu_plus_one(x: Tensor) -> Tensor:
    """Not elu(x) + 1, which in float32 is exactly 0 below -17."""
    return x.clamp(max=0).exp() + x.relu()
