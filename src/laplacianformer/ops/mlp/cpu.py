"""The MLP in blocks of rows, whose hidden numbers stay in the cache, and its gradient.

All hidden numbers together are the largest tensor of a model by far: written to memory and read back, they take as
long as the products, and the system needs as long to provide the memory. In float32, products are those of
`ops.linear`; the first bias is added by the GELU. For the gradient, the hidden numbers before the bias are kept, and
their GELU is computed again. In half precision there are blocks only without a gradient: a training step,
with PyTorch's products, is slower in blocks. For the gradient, the hidden numbers are kept once, too.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer.ops import _cpu_extension as cpu_extension
from laplacianformer.ops._cpu_extension import level
from laplacianformer.ops._gradients import gradients_by
from laplacianformer.ops._precision import is_autocast, without_autocast
from laplacianformer.ops._tracing import is_unobserved, needs_gradient
from laplacianformer.ops.linear import blas, onednn
from laplacianformer.ops.mlp import reference

# Of hidden numbers: about what the second-level caches of two cores hold. Sums over rows are taken block by block, so
# blocks of another size for each number of threads would change the bits.
_BLOCK_BYTES = 1 << 21
_LEAST_ROWS = 256  # products of fewer rows are slower
_HALVES = (torch.bfloat16, torch.float16)


def check(*tensors: Tensor) -> str | None:
    """Why this can't be computed in blocks, or None if it can."""
    if (missing := cpu_extension.missing()) is not None:
        return missing
    if (reason := cpu_extension.check(*tensors)) is not None:
        return reason
    if _half_dtype(*tensors) is not None:
        return None
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        return f"it takes float32, bfloat16 or float16, got {', '.join(str(tensor.dtype) for tensor in tensors)}"
    return "autocast is on" if is_autocast(tensors[0].device) else None


def mlp(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, backend: str | None = None
) -> Tensor:
    """As `reference.mlp`."""
    given = x, weight1, bias1, weight2, bias2
    dtype, learns = _half_dtype(*given), needs_gradient(*given)
    if dtype is None:
        out: Tensor = _Mlp.apply(*given, backend) if learns else _forward(*given, None)
    elif learns:
        out = _HalfMlp.apply(*(tensor.to(dtype) for tensor in given), backend)
    else:
        out = _forward_in_half(dtype, *given)
    return out


def _forward(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, kept: list[Tensor] | None
) -> Tensor:
    """`kept`: where the numbers before the first bias go, block by block; None if they are not kept."""
    products = _products(x, weight1, weight2)
    rows, width, bias1 = x.shape[:-1].numel(), len(weight1), bias1.contiguous()
    given, out = x.reshape(rows, x.shape[-1]), x.new_empty((*x.shape[:-1], len(weight2)))
    result = out.view(rows, len(weight2))
    for block in _blocks(rows, width):
        hidden = activated = products.product(given[block], weight1)
        if kept is not None:
            kept.append(hidden)
            activated = torch.empty_like(hidden)
        torch.ops.laplacianformer_cpu.gelu_forward(hidden, bias1, activated, level())
        products.product(activated, weight2, bias2, out=result[block])
    return out


def _half_dtype(*tensors: Tensor) -> torch.dtype | None:
    """bfloat16 or float16 where linear layers of these tensors compute in it, or None."""
    given = {tensor.dtype for tensor in tensors}
    if is_autocast(tensors[0].device):
        dtype, fits = torch.get_autocast_dtype("cpu"), given <= {torch.float32, *_HALVES}
    else:
        dtype, fits = tensors[0].dtype, len(given) == 1
    return dtype if fits and dtype in _HALVES else None


def _forward_in_half(dtype: torch.dtype, x: Tensor, *weights: Tensor) -> Tensor:
    """By PyTorch's own linear layers, with the bits of the composition: they round the hidden numbers, which are then
    overwritten by their GELU."""
    # Parameters are left to autocast, which keeps what it made of them for the next block and the next call.
    weight1, bias1, weight2, bias2 = (weight if weight.requires_grad else weight.to(dtype) for weight in weights)
    rows, width = x.shape[:-1].numel(), len(weight1)
    given, out = x.reshape(rows, x.shape[-1]).to(dtype), x.new_empty((*x.shape[:-1], len(weight2)), dtype=dtype)
    result = out.view(rows, len(weight2))
    for block in _blocks(rows, width, dtype.itemsize):
        hidden = F.linear(given[block], weight1, bias1)
        torch.ops.laplacianformer_cpu.gelu_forward(hidden, None, hidden, level())
        result[block] = F.linear(hidden, weight2, bias2)
    return out


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, backend: str | None
    ) -> Tensor:
        kept: list[Tensor] = []
        out = _forward(x, weight1, bias1, weight2, bias2, kept)
        ctx.save_for_backward(x, weight1, bias1, weight2, bias2, *kept)
        ctx.backend = backend
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight1, bias1, weight2, bias2, *kept = ctx.saved_tensors
        inputs = [x, weight1, bias1, weight2, bias2]
        with without_autocast(grad.device):
            if torch.is_grad_enabled() or not is_unobserved(grad):  # second derivatives, batched gradients, counters
                return *_gradients_by_ops(inputs, grad, ctx.backend), None
            return *_gradients(inputs, kept, grad, ctx.needs_input_grad), None


def _gradients(
    inputs: list[Tensor], kept: Sequence[Tensor], grad: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of those inputs that need one. Blocks write their rows of dx, and add to the others."""
    x, weight1, bias1, weight2, _ = inputs
    products, rows = _products(x, weight1, weight2), x.shape[:-1].numel()
    given, grad, bias1 = x.reshape(rows, x.shape[-1]), grad.reshape(rows, len(weight2)), bias1.contiguous()
    dx = given.new_empty(given.shape) if needed[0] else None
    dweight1 = dbias1 = dweight2 = None
    for block, hidden in zip(_blocks(rows, len(weight1)), kept, strict=True):
        slope = products.product(grad[block], weight2.t())
        activated = torch.empty_like(hidden) if needed[3] else None
        torch.ops.laplacianformer_cpu.gelu_backward(slope, hidden, bias1, slope, activated, level())
        if dx is not None:
            products.product(slope, weight1.t(), out=dx[block])
        if needed[1]:
            dweight1 = products.weight_gradient(slope, given[block], dweight1)
        if needed[2]:
            dbias1 = slope.sum(0) if dbias1 is None else dbias1.add_(slope.sum(0))
        if activated is not None:
            dweight2 = products.weight_gradient(grad[block], activated, dweight2)
    return (
        None if dx is None else dx.view(x.shape),
        dweight1,
        dbias1,
        dweight2,
        grad.sum(0) if needed[4] else None,
    )


class _HalfMlp(torch.autograd.Function):
    """Of bfloat16 or float16, with the bits of the composition."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, backend: str | None
    ) -> Tensor:
        with without_autocast(x.device):
            hidden = F.linear(x.reshape(-1, x.shape[-1]), weight1, bias1)
            activated = torch.empty_like(hidden)
            torch.ops.laplacianformer_cpu.gelu_forward(hidden, None, activated, level())
            out = F.linear(activated, weight2, bias2)
        ctx.save_for_backward(x, weight1, bias1, weight2, bias2, hidden)
        ctx.backend = backend
        return out.view(*x.shape[:-1], len(weight2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, hidden = ctx.saved_tensors
        with without_autocast(grad.device):
            if torch.is_grad_enabled() or not is_unobserved(grad):
                return *_gradients_by_ops(inputs, grad, ctx.backend), None
            return *_gradients_in_half(inputs, hidden, grad, ctx.needs_input_grad), None


def _gradients_in_half(
    inputs: list[Tensor], hidden: Tensor, grad: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of those inputs that need one: each is rounded once, by PyTorch's own product or sum."""
    x, weight1, _, weight2, _ = inputs
    given, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, len(weight2))
    slope, activated = grad @ weight2, torch.empty_like(hidden) if needed[3] else None
    torch.ops.laplacianformer_cpu.gelu_backward(slope, hidden, None, slope, activated, level())
    dweight2 = None if activated is None else grad.t() @ activated
    del activated
    return (
        (slope @ weight1).view(x.shape) if needed[0] else None,
        slope.t() @ given if needed[1] else None,
        slope.sum(0) if needed[2] else None,
        dweight2,
        grad.sum(0) if needed[4] else None,
    )


def _gradients_by_ops(inputs: list[Tensor], grad: Tensor, backend: str | None) -> list[Tensor | None]:
    """The same by the composition, which everyone can observe."""
    return gradients_by(partial(reference.mlp, backend=backend), inputs, grad)


def _products(x: Tensor, weight1: Tensor, weight2: Tensor) -> Any:
    return blas if onednn.check(x, weight1, weight2) is not None else onednn


def _blocks(rows: int, width: int, itemsize: int = 4) -> list[slice]:
    """Of equal size, because some libraries compute a single row in another way. At least one, which may be empty,
    so that every gradient has a shape."""
    most = max(_LEAST_ROWS, _BLOCK_BYTES // (itemsize * max(1, width)))
    count = max(1, -(-rows // most))
    ends = [rows * index // count for index in range(count + 1)]
    return [slice(begin, end) for begin, end in pairwise(ends)]
