"""GELU and its gradient against a copy of the same tensor, which is the limit set by memory, and against PyTorch's.

    python benchmarks/gelu.py

2 MB, as in the blocks of an MLP, and 64 MB, which is more than the caches hold, in float32 and bfloat16. Writes
results/benchmarks/models/gelu.csv; `over_base` is the time over that of the copy.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from comparing import RESULTS, Comparison, add_measuring, compare_all, parser_of
from torch import Tensor
from torch.nn import functional as F

from laplacianformer import ops
from laplacianformer._util.measuring import Call

MEGABYTES = (2, 64)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "models")
    add_measuring(parser, seconds=1.0)
    arguments = parser.parse_args()
    compare_all(cases(), arguments.output / "gelu.csv", arguments)


def cases() -> Iterator[Comparison]:
    for name, dtype in DTYPES.items():
        for megabytes in MEGABYTES:
            numbers = megabytes * 2**20 // dtype.itemsize
            for gradient in (False, True):
                build = partial(build_gradient if gradient else build_forward, numbers=numbers, dtype=dtype)
                builders: dict[str, Callable[[], Call]] = {
                    "ours": partial(build, ops.gelu),
                    "torch": partial(build, F.gelu),
                    "copy": partial(build_copy, numbers, dtype),
                }
                yield {"dtype": name, "megabytes": megabytes, "gradient": gradient}, builders, "copy"


def build_forward(function: Callable[[Tensor], Tensor], *, numbers: int, dtype: torch.dtype) -> Call:
    x = torch.randn(numbers).to(dtype)
    return torch.inference_mode()(lambda: function(x))


def build_gradient(function: Callable[[Tensor], Tensor], *, numbers: int, dtype: torch.dtype) -> Call:
    """The backward pass alone, which reads two tensors and writes one."""
    x = torch.randn(numbers).to(dtype).requires_grad_()
    out, grad = function(x), torch.randn(numbers).to(dtype)
    return lambda: torch.autograd.grad(out, x, grad, retain_graph=True)


def build_copy(numbers: int, dtype: torch.dtype) -> Call:
    x = torch.randn(numbers).to(dtype)
    return x.clone


if __name__ == "__main__":
    main()
