"""The whole global branch in one call of the C++ backend, and its gradient in another: on small images, calls cost more
than work.

The default form of the attention only; everything else takes the ops one by one. Numbers are float32; in evaluation
tokens may also be bfloat16 or float16, which is what autocast makes of them, and are widened as they are read.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplacianformer.ops import backend as backends
from laplacianformer.ops.cpu_extension import level
from laplacianformer.ops.newton_schulz.cpu import LARGEST as LARGEST
from laplacianformer.ops.precision import without_autocast
from laplacianformer.ops.registered import unwatched
from laplacianformer.ops.registered import wants_gradient as wants_gradient

Rotation = tuple[Tensor, Tensor]


class Settings(NamedTuple):
    """What the branch is given beside queries, keys and values.

    `rotation` turns queries and keys, `cell_rotation` the pooled keys: (cos, sin), or None. `gain` is a number, or a
    tensor of one a head. `size` and `cells` are the grids of tokens and landmarks: where they are the same, nothing is
    solved.
    """

    rotation: Rotation | None
    cell_rotation: Rotation | None
    gain: Tensor | float
    size: tuple[int, int]
    cells: tuple[int, int]
    scale: float
    eps: float
    variance_eps: float
    iterations: int

    def rotations(self) -> list[Tensor]:
        given = (*self.rotation, *self.cell_rotation) if self.rotation and self.cell_rotation else ()
        return [table.contiguous() for table in given]

    def gains(self) -> Tensor | None:
        return self.gain.detach().float().contiguous() if isinstance(self.gain, Tensor) else None

    def numbers(self) -> tuple[list[int], list[float], int]:
        gain = 0.0 if isinstance(self.gain, Tensor) else self.gain
        sizes = [*self.size, *self.cells, self.iterations]
        return sizes, [gain, self.scale, self.eps, self.variance_eps], level()


def can_run(q: Tensor, k: Tensor, v: Tensor, gain: Tensor | float) -> bool:
    return (
        unwatched(q, k, v, gain)
        and q.dtype == k.dtype == v.dtype
        and q.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and q.shape == k.shape == v.shape  # attention maps give other values
        and q.shape[0] > 0
        and backends.chosen("laplacian_matmul", backends.requested(None), (q, k)) == "cpu"
    )


def evaluated(q: Tensor, k: Tensor, v: Tensor, variance: Tensor | None, settings: Settings) -> Tensor:
    """mean(L) + k(Q, Km) gain/m P D L, with L = (m/N) inv(k(Km, Km) + eps I) k(Km, K) V and Km the pooled keys.

    Args:
        q, k, v: (B, heads, H * W, d), of which none wants a gradient.
        variance: (heads, m), for D of the whitening, or None.

    Returns:
        (B, heads, H * W, d) in the dtype of q, with the layout of (B, H * W, heads, d).
    """
    if variance is not None:
        variance = variance.float().contiguous()
    out: Tensor = torch.ops.laplacianformer_cpu.attention_evaluate(
        q, k, v, variance, settings.gains(), settings.rotations(), *settings.numbers()
    )
    return out


def trained(
    q: Tensor, k: Tensor, v: Tensor, settings: Settings, one_by_one: Callable[..., Tensor]
) -> tuple[Tensor, Tensor]:
    """The same, with D from the variance of the kernel's columns over batch and queries, which is returned too.

    Args:
        q, k, v: float32.
        one_by_one: the same result from q, k, v and the gain by ops that everyone can look into, for the gradients of
            those who do.
    """
    gain = settings.gain if isinstance(settings.gain, Tensor) else None
    out, variance = _Trained.apply(q, k, v, gain, settings, one_by_one)
    return out, variance


class _Trained(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, gain: Tensor | None, settings: Settings, one_by_one: Any
    ) -> tuple[Tensor, Tensor]:
        gains, rotations, numbers = settings.gains(), settings.rotations(), settings.numbers()
        forward = torch.ops.laplacianformer_cpu.attention_forward
        out, variance, saved = forward(q, k, v, gains, rotations, *numbers)
        ctx.save_for_backward(q, k, v, gain, variance, gains, *rotations, *saved)
        ctx.numbers, ctx.rotations = numbers, len(rotations)
        ctx.one_by_one = one_by_one
        ctx.mark_non_differentiable(variance)
        ctx.set_materialize_grads(False)
        return out, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        q, k, v, gain, variance, gains, *rest = ctx.saved_tensors
        rotations, saved = rest[: ctx.rotations], rest[ctx.rotations :]
        if torch.is_grad_enabled() or not unwatched(grad):  # second derivatives, batched gradients, someone looking on
            return (*_by_ops(ctx.one_by_one, [q, k, v, gain], grad), None, None)
        backward = torch.ops.laplacianformer_cpu.attention_backward
        dq, dk, dv, d_gains = backward(grad, q, k, v, variance, saved, gains, rotations, *ctx.numbers)
        return dq, dk, dv, None if gain is None else d_gains.to(gain.dtype), None, None


def _by_ops(one_by_one: Callable[..., Tensor], inputs: list[Tensor | None], grad: Tensor) -> list[Tensor | None]:
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), without_autocast(grad.device):
        # Views, each with a gradient of its own: queries and keys may be one tensor.
        inputs = [None if t is None else t.view_as(t) for t in inputs]
        wanted = [t for t in inputs if t is not None and t.requires_grad]
        grads = iter(torch.autograd.grad(one_by_one(*inputs), wanted, grad, create_graph=create_graph))
    return [next(grads) if t is not None and t.requires_grad else None for t in inputs]
