"""The matrix products of linear layers by oneDNN, which comes with PyTorch and which it uses in compiled graphs.

On AMD CPUs with AVX-512 it is faster than the library behind PyTorch's own products, MKL: docs/benchmarks.md says how
much. It computes in float32, too. PyTorch has no public name for these products.
"""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from laplacianformer.ops import _cpu_extension as cpu_extension

# Products of rows, width and d from which a call is no slower, for the rows of one matrix: which products are used must
# not depend on what else is in a batch.
_LEAST_WORK = 1 << 19
# A weight gradient is summed over ranges of so many rows: over longer ones, oneDNN divides the sum among threads.
_ROWS = 1024


def check(x: Tensor, *weights: Tensor) -> str | None:
    """Why these products are not computed by oneDNN, or None if they are."""
    if (reason := _missing()) is not None:
        return reason
    if not torch.backends.mkldnn.enabled:
        return "oneDNN is switched off, by torch.backends.mkldnn"
    if any(x.shape[-2:-1].numel() * weight.numel() < _LEAST_WORK for weight in weights):
        return "the products are small"
    return None


@lru_cache(maxsize=1)
def _missing() -> str | None:
    """Why it is not used on this machine at all."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return "this PyTorch comes without the product of oneDNN"
    if _vendor() != "AuthenticAMD" or cpu_extension.levels()[-1] != "avx512":
        return "it is known to be faster on AMD CPUs with AVX-512 only"
    return None


def _vendor() -> str:
    """Of the CPU, as Linux states it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """As `blas.product`, for d of at least 1."""
    bias = None if bias is None else bias.contiguous()  # its stride is not looked at
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found if out is None else out.copy_(found)


def weight_gradient(grad: Tensor, x: Tensor, total: Tensor | None = None) -> Tensor:
    """As `blas.weight_gradient`. The left factor is copied as its transpose, so it is the narrower one."""
    swap = x.shape[1] < grad.shape[1]
    left, right = (x, grad) if swap else (grad, x)
    found: Tensor | None = None
    for begin in range(0, len(x), _ROWS):
        rows = slice(begin, begin + _ROWS)
        part = product(left[rows].t(), right[rows].t())
        found = part if found is None else found.add_(part)
    if found is None:
        found = left.new_zeros((left.shape[1], right.shape[1]))
    found = found.t() if swap else found
    return found.contiguous() if total is None else total.add_(found)
