"""linear: the public function, and the choice between the products of oneDNN and PyTorch's own function.

It is not registered with torch.library: compilers, exporters, counters and transforms see PyTorch's own function, which
all of them know.
"""

from torch import Tensor

from laplacianformer.ops import _check as check
from laplacianformer.ops._backend import Composed, requested
from laplacianformer.ops.linear import cpu, reference

BACKENDS = Composed(cpu=cpu.linear, cpu_check=cpu.check, reference=reference.linear)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """x @ weight.T + bias: `torch.nn.functional.linear`.

    Args:
        x: (..., d).
        weight, bias: (width, d) and (width,) or None, as `nn.Linear` has them.
        backend: force one (see `backends()`); by default the fastest that can run. On "cpu", large products in float32
            are computed by oneDNN where that is faster than PyTorch's own function: on AMD CPUs with AVX-512.

    Returns:
        (..., width). O(N d width) time.
    """
    named = {"x": x, "weight": weight} if bias is None else {"x": x, "weight": weight, "bias": bias}
    check.floating("linear", **named)
    fits = x.ndim >= 1 and weight.ndim == 2 and x.shape[-1] == weight.shape[1]
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        raise ValueError(
            "linear: expected x (..., d), weight (width, d) and bias (width,), "
            f"got {', '.join(str(tuple(tensor.shape)) for tensor in named.values())}"
        )
    name = requested(backend)
    return BACKENDS.choose(name, x, weight, bias)(x, weight, bias, name or None)
