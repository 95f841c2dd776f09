"""Checks at the public edge of the ops: what was given, what is expected. Inner code trusts its caller."""

import math

import torch
from torch import Tensor

from laplacianformer._util.limits import shown

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def floating(op: str, **named: Tensor) -> None:
    """Dense floating-point tensors."""
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{op}: {name} must be a tensor, got {type(tensor).__name__}")
        if tensor.dtype not in _DTYPES:
            expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise TypeError(f"{op}: {name} must be one of {expected}, got {tensor.dtype}")
        if tensor.layout != torch.strided:
            raise TypeError(f"{op}: {name} must be dense, got {tensor.layout}")


def tensors(op: str, **named: Tensor) -> None:
    """Dense floating-point tensors on one device, of at least two dimensions."""
    floating(op, **named)
    for name, tensor in named.items():
        if tensor.ndim < 2:
            raise ValueError(f"{op}: {name} must have at least 2 dimensions, got shape {tuple(tensor.shape)}")
    first, *others = named.values()
    if any(tensor.device != first.device for tensor in others):
        found = ", ".join(f"{name} on {tensor.device}" for name, tensor in named.items())
        raise ValueError(f"{op}: tensors must be on one device, got {found}")


def same_width(op: str, x: Tensor, y: Tensor) -> None:
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(f"{op}: x and y must have the same last dimension, got {tuple(x.shape)} and {tuple(y.shape)}")


def square(op: str, w: Tensor) -> None:
    if w.shape[-1] != w.shape[-2]:
        raise ValueError(f"{op}: w must be square in its last two dimensions, got {tuple(w.shape)}")


def positive(op: str, **named: float) -> None:
    number(op, **named)
    for name, value in named.items():
        if not value > 0:
            raise ValueError(f"{op}: {name} must be greater than 0, got {value}")


def not_negative(op: str, **named: float) -> None:
    number(op, **named)
    for name, value in named.items():
        if not value >= 0:
            raise ValueError(f"{op}: {name} must not be negative, got {value}")


def number(op: str, **named: float) -> None:
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}")
        # Not math.isfinite: torch.compile can't trace it when it makes the number an input of the graph.
        if not -math.inf < value < math.inf:
            raise ValueError(f"{op}: {name} must be finite, got {value}")


def iterations(op: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{op}: iterations must be an integer, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{op}: iterations must be at least 1, got {value}")


def choice(op: str, options: tuple[str | None, ...], **named: str | None) -> None:
    for name, value in named.items():
        if value not in options:
            raise ValueError(f"{op}: {name} must be one of {', '.join(map(repr, options))}, got {shown(value)}")


def broadcast_batch(op: str, **named: Tensor) -> tuple[Tensor, ...]:
    """Expand all leading dimensions against each other (a view: nothing is copied)."""
    shapes = [tensor.shape[:-2] for tensor in named.values()]
    if all(shape == shapes[0] for shape in shapes[1:]):
        return tuple(named.values())
    try:
        batch = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        found = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
        raise ValueError(f"{op}: leading dimensions don't broadcast: {found}") from None
    return tuple(tensor.expand(*batch, *tensor.shape[-2:]) for tensor in named.values())
