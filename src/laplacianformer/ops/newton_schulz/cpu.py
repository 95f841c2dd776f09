"""newton_schulz in C++ for matrices that fit the cache; larger ones are torch's own batched products, and so are those
of the authors' start, which is there only to compare with."""

import torch
from torch import Tensor

from laplacianformer.ops._cpu_extension import check as check
from laplacianformer.ops._cpu_extension import dense, level
from laplacianformer.ops.newton_schulz import reference

# A matrix of this size and its iterates fill a second-level cache; beyond, torch's products are as fast.
LARGEST = 128


def forward(w: Tensor, iterations: int, eps: float, start: str) -> Tensor:
    if w.shape[-1] > LARGEST or start == "authors":
        return reference.forward(w, iterations, eps, start)
    out = torch.empty(w.shape, dtype=w.dtype, device="cpu")
    torch.ops.laplacianformer_cpu.inverse_forward(*dense(w), out, iterations, eps, start == "identity", level())
    return out


def backward(grad: Tensor, w: Tensor, iterations: int, eps: float, start: str) -> Tensor:
    if w.shape[-1] > LARGEST or start == "authors":
        return reference.backward(grad, w, iterations, eps, start)
    out = torch.empty(w.shape, dtype=w.dtype, device="cpu")
    identity = start == "identity"
    torch.ops.laplacianformer_cpu.inverse_backward(*dense(grad, w), out, iterations, eps, identity, level())
    return out
