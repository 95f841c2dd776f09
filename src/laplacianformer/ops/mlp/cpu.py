"""The MLP in blocks of rows, whose hidden numbers stay in the cache, and its gradient.

All hidden numbers together are the largest tensor of a model by far: written to memory and read back, they take as
long as the products, and the system needs as long to provide the memory. Products are those of PyTorch; the first bias
is added by the GELU. For the gradient, the hidden numbers before the bias are kept, and their GELU is computed again.
"""

from typing import Any

import torch
from torch import Tensor

from laplacianformer.ops import _cpu_extension as cpu_extension
from laplacianformer.ops._cpu_extension import level
from laplacianformer.ops._precision import is_autocast, without_autocast
from laplacianformer.ops._tracing import is_unobserved, needs_gradient
from laplacianformer.ops.mlp import reference

# Of hidden numbers per thread: about what the second-level cache of a core holds.
_BLOCK_BYTES = 1 << 20
_LEAST_ROWS = 256  # products of fewer rows are slower


def check(*tensors: Tensor) -> str | None:
    """Why this can't be computed in blocks, or None if it can."""
    if (missing := cpu_extension.missing()) is not None:
        return missing
    if (reason := cpu_extension.check(*tensors)) is not None:
        return reason
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        return f"it takes float32, got {', '.join(str(tensor.dtype) for tensor in tensors)}"
    return "autocast is on" if is_autocast(tensors[0].device) else None


def mlp(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, backend: str | None = None
) -> Tensor:
    """As `reference.mlp`."""
    if needs_gradient(x, weight1, bias1, weight2, bias2):
        result: Tensor = _Mlp.apply(x, weight1, bias1, weight2, bias2, backend)
        return result
    return _forward(x, weight1, bias1, weight2, bias2, None)


def _forward(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, hidden: Tensor | None
) -> Tensor:
    """`hidden`: (rows, width), where the numbers before the first bias are kept; None if they are not."""
    rows, width, bias1 = x.shape[:-1].numel(), len(weight1), bias1.contiguous()
    given, out = x.reshape(rows, x.shape[-1]), x.new_empty((*x.shape[:-1], len(weight2)))
    step, result = _block_rows(rows, width), out.view(rows, len(weight2))
    scratch = x.new_empty((step, width))
    for begin in range(0, rows, step):
        block = slice(begin, begin + step)
        activated = scratch[: rows - begin]
        before = activated if hidden is None else hidden[block]
        torch.mm(given[block], weight1.t(), out=before)
        torch.ops.laplacianformer_cpu.gelu_forward(before, bias1, activated, level())
        torch.addmm(bias2, activated, weight2.t(), out=result[block])
    return out


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, backend: str | None
    ) -> Tensor:
        hidden = x.new_empty((x.shape[:-1].numel(), len(weight1)))
        out = _forward(x, weight1, bias1, weight2, bias2, hidden)
        ctx.save_for_backward(x, weight1, bias1, weight2, bias2, hidden)
        ctx.backend = backend
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, hidden = ctx.saved_tensors
        with without_autocast(grad.device):
            if torch.is_grad_enabled() or not is_unobserved(grad):  # second derivatives, batched gradients, counters
                return *_gradients_by_ops(inputs, grad, ctx.backend), None
            return *_gradients(inputs, hidden, grad, ctx.needs_input_grad), None


def _gradients(
    inputs: list[Tensor], hidden: Tensor, grad: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Of those inputs that need one. Blocks write their rows of dx, and add to the others."""
    x, weight1, bias1, weight2, _ = inputs
    rows, width = hidden.shape
    given, grad = x.reshape(rows, x.shape[-1]), grad.reshape(rows, len(weight2))
    dx = given.new_empty(given.shape) if needed[0] else None
    dweight1, dbias1, dweight2 = (
        tensor.new_zeros(tensor.shape) if need else None
        for tensor, need in zip((weight1, bias1, weight2), needed[1:], strict=False)
    )
    step, bias1 = _block_rows(rows, width), bias1.contiguous()
    scratch = x.new_empty((2 if needed[3] else 1, step, width))
    for begin in range(0, rows, step):
        block = slice(begin, begin + step)
        slope, *activated = scratch[:, : rows - begin]
        torch.mm(grad[block], weight2, out=slope)
        torch.ops.laplacianformer_cpu.gelu_backward(
            slope, hidden[block], bias1, slope, activated[0] if activated else None, level()
        )
        if dx is not None:
            torch.mm(slope, weight1, out=dx[block])
        if dweight1 is not None:
            dweight1.addmm_(slope.t(), given[block])
        if dbias1 is not None:
            dbias1 += slope.sum(0)
        if dweight2 is not None:
            dweight2.addmm_(grad[block].t(), activated[0])
    return (
        None if dx is None else dx.view(x.shape),
        dweight1,
        dbias1,
        dweight2,
        grad.sum(0) if needed[4] else None,
    )


def _gradients_by_ops(inputs: list[Tensor], grad: Tensor, backend: str | None) -> list[Tensor | None]:
    """The same by the composition, which everyone can observe."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [tensor.view_as(tensor) for tensor in inputs]  # each with a gradient of its own
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        x, weight1, bias1, weight2, bias2 = inputs
        out = reference.mlp(x, weight1, bias1, weight2, bias2, backend)
        grads = iter(torch.autograd.grad(out, wanted, grad, create_graph=create_graph))
    return [next(grads) if tensor.requires_grad else None for tensor in inputs]


def _block_rows(rows: int, width: int) -> int:
    """At least 1, for ranges."""
    most = max(_LEAST_ROWS, torch.get_num_threads() * _BLOCK_BYTES // (4 * max(1, width)))
    return max(1, min(rows, most))
