"""Hedgehog: Zhang, Bhatia, Kumbong and Re, "The Hedgehog & the Porcupine: Expressive Linear Attentions with Softmax
Mimicry", 2024.

    phi(x) = [softmax(W x), softmax(-W x)]         out = phi(Q) (phi(K)' V) / (phi(Q) (phi(K)' 1))

softmax runs over the channels of one token. W is a d x d matrix per head, one for queries and one for keys, learned
from the identity with the rest of the network; the paper's distillation from a trained softmax model is not part of
the layer. O(N d^2).

Shape suffixes: b batch, h heads, n tokens, d head width, f = 2 d features.
"""

from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer.attention.baselines._feature_maps import FeatureMapAttention
from laplacianformer.ops._pooling import Size


class HedgehogAttention(FeatureMapAttention):
    """proj(A V + DWC(V)) with learned, positive features. See `GridAttention` for the arguments."""

    mixer = "hedgehog"

    def __init__(self, dim: int, num_heads: int, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        identity_hdd = torch.eye(self.head_dim).expand(num_heads, -1, -1)
        self.query_map = nn.Parameter(identity_hdd.clone())
        self.key_map = nn.Parameter(identity_hdd.clone())

    def features(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return _spikes(q_bhnd, self.query_map), _spikes(k_bhnd, self.key_map)


def _spikes(x_bhnd: Tensor, map_hdd: Tensor) -> Tensor:
    mapped_bhnd = x_bhnd @ map_hdd.to(x_bhnd.dtype).mT
    return torch.cat([mapped_bhnd.softmax(-1), (-mapped_bhnd).softmax(-1)], dim=-1)
