"""Dtypes: what accumulates in what, and what autocast does to an op's inputs."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def promote(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All tensors in the widest of their dtypes."""
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def under_autocast(*tensors: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """Inside an autocast region, cast to `dtype` (None: the region's own); elsewhere, change nothing.

    float64 is left alone, as autocast does.
    """
    device = tensors[0].device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensors
    target = torch.get_autocast_dtype(device) if dtype is None else dtype
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(target) for tensor in tensors)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """A block in which autocast is off, on devices that have it."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
