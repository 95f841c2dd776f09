"""SOFT++: Lu, Zhang, Zhu, Feng, Xiang and Zhang, "Softmax-free Linear Transformers", 2024.

    S = k(Q, X) D^(-1/2) pinv(W) D^(-1/2) k(X, K)        W = k(X, X)    D = diag(W 1)    Q = K    out = S V

SOFT with its pseudo-inverse normalised from both sides by the degrees of the landmarks, which lowers the norm of S and
keeps it symmetric. In the authors' code its inverse has no ridge and the gradient of the steps; the start there depends
on all images of a batch, and is that of each matrix here. O(N m d).

Shape suffixes: b batch, h heads, m landmarks.
"""

import math

import torch
from torch import Tensor

from laplacianformer.attention.baselines.soft import SoftAttention
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._token_mask import TokenMask


class SoftPlusPlusAttention(SoftAttention):
    """proj(S V + DWC(V)). See `SoftAttention` for the arguments."""

    mixer = "soft++"

    eps = 0.0
    start = "transpose"
    gradient = "exact"

    def inverse(self, w_bhmm: Tensor) -> Tensor:
        root_bhm1 = w_bhmm.sum(-1, keepdim=True).rsqrt()
        return root_bhm1 * super().inverse(w_bhmm) * root_bhm1.mT

    def average(self, size: Size, mask: TokenMask | None) -> Tensor | float:
        if not self.averaged:
            return 1.0
        landmarks = self.prefix + math.prod(self.cells(size)) if mask is None else mask.counts(torch.float32)[1]
        return super().average(size, mask) * landmarks
