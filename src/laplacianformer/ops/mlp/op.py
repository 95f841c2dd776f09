"""mlp: the public function, and the choice between blocks of rows and a composition of its parts.

It is not registered with torch.library: compilers, exporters, counters and transforms see the composition, all of whose
parts they know.
"""

from torch import Tensor

from laplacianformer.ops import _check as check
from laplacianformer.ops._backend import Composed, requested
from laplacianformer.ops.mlp import cpu, reference

BACKENDS = Composed(cpu=cpu.mlp, cpu_check=cpu.check, reference=reference.mlp)


def mlp(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, *, backend: str | None = None
) -> Tensor:
    """linear(gelu(linear(x, weight1, bias1)), weight2, bias2).

    Args:
        x: (..., d).
        weight1, bias1: (width, d) and (width,), as `nn.Linear` has them.
        weight2, bias2: (out, width) and (out,).
        backend: force one (see `backends()`); by default the fastest that can run. On "cpu" the hidden numbers
            stay in the cache, in bfloat16 and float16 where no gradient is needed; elsewhere it is the composition.

    Returns:
        (..., out). O(N width (d + out)) time. On CPUs, memory for the hidden numbers only where a gradient is needed,
        and then once.
    """
    tensors = x, weight1, bias1, weight2, bias2
    check.floating("mlp", x=x, weight1=weight1, bias1=bias1, weight2=weight2, bias2=bias2)
    shapes = tuple(tuple(tensor.shape) for tensor in tensors[1:])
    if x.ndim < 1 or weight1.ndim != 2 or weight2.ndim != 2 or shapes != _expected(x, weight1, weight2):
        raise ValueError(
            "mlp: expected x (..., d), weight1 (width, d), bias1 (width,), weight2 (out, width) and bias2 (out,), "
            f"got {', '.join(str(tuple(tensor.shape)) for tensor in tensors)}"
        )
    name = requested(backend)
    return BACKENDS.choose(name, *tensors)(*tensors, name or None)


def _expected(x: Tensor, weight1: Tensor, weight2: Tensor) -> tuple[tuple[int, ...], ...]:
    width, out = weight1.shape[0], weight2.shape[0]
    return (width, x.shape[-1]), (width,), (out, width), (out,)
