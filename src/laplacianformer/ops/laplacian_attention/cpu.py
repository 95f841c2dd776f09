"""The attention in one call of the C++ extension, and its gradient in another: on small images, calls cost more than
the work in them.

Numbers are float32. Tokens and their gradients may also be bfloat16 or float16, which is what autocast makes of them,
and are widened as they are read. For the gradient, tokens are kept as they are given, and the kernel in float32.
"""

import math
from typing import Any

import torch
from torch import Tensor

from laplacianformer.ops import _cpu_extension as cpu_extension
from laplacianformer.ops._cpu_extension import level
from laplacianformer.ops._gradients import gradients_by
from laplacianformer.ops._tracing import is_unobserved, needs_gradient
from laplacianformer.ops.laplacian_attention import reference
from laplacianformer.ops.laplacian_attention.reference import Gain
from laplacianformer.ops.laplacian_attention.settings import Settings, Variance
from laplacianformer.ops.newton_schulz.cpu import LARGEST

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check(q: Tensor, k: Tensor, v: Tensor, gain: Gain, variance: Variance, settings: Settings) -> str | None:
    """Why this can't be one call, or None if it can."""
    if (missing := cpu_extension.missing()) is not None:
        return missing
    if (reason := cpu_extension.check(q, k, v)) is not None:
        return reason
    if not q.dtype == k.dtype == v.dtype or q.dtype not in _DTYPES:
        return f"it takes tokens of one dtype, float32, bfloat16 or float16, got {q.dtype}, {k.dtype} and {v.dtype}"
    if not q.shape == k.shape == v.shape:
        return f"it takes values of the shape of queries, got {tuple(q.shape)} and {tuple(v.shape)}"
    if q.shape[0] == 0 or q.shape[-1] == 0:
        return "the batch is empty, or heads have no channels"
    if settings.landmarks > LARGEST:
        return f"it takes at most {LARGEST} landmarks, got {settings.landmarks}"
    if isinstance(variance, str):
        return "the variance over all processes is not computed in C++" if variance == "synced" else None
    if needs_gradient(q, k, v, gain):
        return "there is a gradient in C++ only for the variance of the batch"
    return None


def attention(
    q: Tensor, k: Tensor, v: Tensor, gain: Gain, variance: Variance, settings: Settings, backend: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """As `reference.attention`, in the dtype of the tokens, with the layout of (B, N, heads, d)."""
    if isinstance(variance, str):
        learned = gain if isinstance(gain, Tensor) else None
        return _Attention.apply(q, k, v, learned, gain, settings, backend)
    if variance is not None:
        variance = variance.float().contiguous()
    out: Tensor = torch.ops.laplacianformer_cpu.attention_evaluate(
        q, k, v, _mask(settings), variance, _gains(gain), _rotations(settings), *_numbers(gain, settings)
    )
    return out, variance


class _Attention(torch.autograd.Function):
    """Whitened by the variance of the kernel's columns over batch and queries, which is returned too."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        learned: Tensor | None,  # the gain, where it has a gradient
        gain: Gain,
        settings: Settings,
        backend: str | None,
    ) -> tuple[Tensor, Tensor]:
        gains, rotations, numbers = _gains(gain), _rotations(settings), _numbers(gain, settings)
        mask, forward = _mask(settings), torch.ops.laplacianformer_cpu.attention_forward
        out, variance, saved = forward(q, k, v, mask, gains, rotations, *numbers)
        ctx.save_for_backward(q, k, v, learned, mask, variance, gains, *rotations, *saved)
        ctx.numbers, ctx.rotations = numbers, len(rotations)
        ctx.by_ops = gain, settings, backend
        ctx.mark_non_differentiable(variance)
        ctx.set_materialize_grads(False)
        return out, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 7
        q, k, v, learned, mask, variance, gains, *rest = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_unobserved(grad):  # second derivatives, batched gradients, FLOP counters
            return (*_gradients_by_ops([q, k, v, learned], grad, *ctx.by_ops), None, None, None)
        rotations, saved = rest[: ctx.rotations], rest[ctx.rotations :]
        backward = torch.ops.laplacianformer_cpu.attention_backward
        dq, dk, dv, d_gains = backward(grad, q, k, v, mask, variance, saved, gains, rotations, *ctx.numbers)
        return dq, dk, dv, None if learned is None else d_gains.to(learned.dtype), None, None, None


def _gradients_by_ops(
    inputs: list[Tensor | None], grad: Tensor, gain: Gain, settings: Settings, backend: str | None
) -> list[Tensor | None]:
    """The gradients of queries, keys, values and gain by the composition, which everyone can observe."""

    def composition(q: Tensor, k: Tensor, v: Tensor, learned: Tensor | None) -> Tensor:
        gains = gain if learned is None else learned
        return reference.attention(q, k, v, gains, "batch", settings, backend)[0].to(grad.dtype)

    return gradients_by(composition, inputs, grad)


def _rotations(settings: Settings) -> list[Tensor]:
    """Cosines and sines of tokens and of landmarks, or nothing."""
    given = (*settings.rotation, *settings.cell_rotation) if settings.rotation and settings.cell_rotation else ()
    return [table.contiguous() for table in given]


def _mask(settings: Settings) -> Tensor | None:
    return None if settings.mask is None else settings.mask.mask_bn.contiguous()


def _gains(gain: Gain) -> Tensor | None:
    return gain.detach().float().contiguous() if isinstance(gain, Tensor) else None


def _numbers(gain: Gain, settings: Settings) -> tuple[list[int], list[float], int]:
    """Integers, numbers and the instruction set, in the order of the C++ side."""
    missing = (1,) * (3 - len(settings.size))  # axes
    sizes = [*missing, *settings.size, *missing, *settings.cells, settings.prefix, settings.iterations]
    constant = 0.0 if isinstance(gain, Tensor) else math.nan if gain == "auto" else gain
    return sizes, [constant, settings.scale, settings.eps, settings.variance_eps], level()
