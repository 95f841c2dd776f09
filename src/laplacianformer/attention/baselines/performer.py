"""Performer: Choromanski, Likhosherstov, Dohan, Song, Gane, Sarlos, Hawkins, Davis, Mohiuddin, Kaiser, Belanger,
Colwell and Weller, "Rethinking Attention with Performers", 2021 (FAVOR+).

    phi(x) = (exp(Omega x - s - |x|^2 / 2) + eps) / sqrt(f)    of x = q / d^(1/4) and k / d^(1/4)
    out    = phi(Q) (phi(K)' V) / (phi(Q) (phi(K)' 1))

The rows of Omega are normal, so phi(q)'phi(k) is exp(q'k / sqrt(d)) in expectation, up to eps and factors that cancel:
what softmax attention divides by its row sums, here with positive weights from every draw. s is the largest entry of
Omega x of a query, and of all keys of a head, so that nothing overflows. eps = 1e-4, as in the authors' code, keeps
features from vanishing: long queries, and keys far from the longest, attend more evenly than without it. Rows of Omega
are orthogonal within blocks of d, which keeps their distribution and lowers the variance. O(N d f). Omega is drawn
once, by a generator of its own, and kept in the state of the layer: other parameters start as they do with any other
mixer.

Shape suffixes: b batch, h heads, n tokens, d head width, f features.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

from laplacianformer.attention._grid import check_count
from laplacianformer.attention.baselines._feature_maps import FeatureMapAttention
from laplacianformer.ops._pooling import Size

_LEAST = -1e30  # never the largest
_EPS = 1e-4  # added to features of at most 1


class PerformerAttention(FeatureMapAttention):
    """proj(A V + DWC(V)), A an estimate of softmax(Q K' / sqrt(d)) by random features.

    Args:
        dim: channels.
        num_heads: heads.
        features: random features per head; the error of the estimate falls as 1 / sqrt(features).
        seed: of the draw; None: from the state of torch's generator, so that each layer of a model has an Omega of its
            own, and the same one whenever the model is built from the same seed.
        **shared: rope, tied, qkv_bias, proj_drop; see `GridAttention`.
    """

    mixer = "performer"

    omega: Tensor  # (heads, f, d)

    def __init__(
        self, dim: int, num_heads: int, *, features: int = 128, seed: int | None = None, **shared: Any
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        check_count(self, features=features)
        omega = _draw_orthogonal(num_heads, features, self.head_dim, _own_seed() if seed is None else seed)
        self.register_buffer("omega", omega.to(self.qkv.weight))

    def features(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q_bhnf, q_bhn1 = self.projected(q_bhnd)
        k_bhnf, k_bhn1 = self.projected(k_bhnd)
        if mask is not None:  # the largest of all keys is that of a key that counts
            k_bhnf = k_bhnf.masked_fill(~mask[:, None, :, None], _LEAST)
        q_bhnf = q_bhnf - q_bhnf.amax(-1, keepdim=True) - q_bhn1
        k_bhnf = k_bhnf - k_bhnf.amax((-2, -1), keepdim=True) - k_bhn1
        return q_bhnf.exp() + _EPS, k_bhnf.exp() + _EPS

    def projected(self, x_bhnd: Tensor) -> tuple[Tensor, Tensor]:
        """Omega x, (B, heads, N, f), and |x|^2 / 2, (B, heads, N, 1)."""
        x_bhnd = x_bhnd / self.head_dim**0.25
        return x_bhnd @ self.omega.to(x_bhnd.dtype).mT, x_bhnd.square().sum(-1, keepdim=True) / 2


def _own_seed() -> int:
    """From the state of torch's generator, which stays as it is: parameters drawn later do not depend on the mixer."""
    state = torch.get_rng_state().numpy().tobytes()
    return int.from_bytes(hashlib.sha256(state).digest()[:4], "little")


def _draw_orthogonal(heads: int, features: int, width: int, seed: int) -> Tensor:
    """(heads, features, width): standard normal rows, orthogonal to each other within blocks of `width`."""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-features // width)
    normal = torch.randn(heads, 2, blocks, width, width, generator=generator, device="cpu")
    # The signs make the orthogonal factor uniform; the lengths are those of rows that are not orthogonal.
    rotation, triangle = torch.linalg.qr(normal[:, 0])
    rotation = rotation * triangle.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    lengths = normal[:, 1].norm(dim=-1, keepdim=True)
    return (lengths * rotation).flatten(1, 2)[:, :features].contiguous()
