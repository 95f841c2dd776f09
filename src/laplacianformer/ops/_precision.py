"""Dtypes: what accumulates in what, and what autocast does to an op's inputs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from laplacianformer.ops._tracing import is_autocast_possible

_CPU = torch.device("cpu")


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def promote(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All tensors in the widest of their dtypes."""
    dtype = tensors[0].dtype
    if all(tensor.dtype == dtype for tensor in tensors[1:]):
        return tensors
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def under_autocast(*tensors: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """Inside an autocast region, cast to `dtype` (None: the region's own); elsewhere, change nothing.

    float64 is left alone, as autocast does.
    """
    device = tensors[0].device
    if not is_autocast(device):
        return tensors
    target = torch.get_autocast_dtype(device.type) if dtype is None else dtype
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(target) for tensor in tensors)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """A block in which autocast is off."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()


@contextmanager
def full_products(device: torch.device) -> Iterator[None]:
    """A block in which products of float32 on a GPU are in float32, also where the process allows TF32."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if device.type == "cuda" and before == "tf32":
        matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        if matmul.fp32_precision != before:
            matmul.fp32_precision = before


def is_autocast(device: torch.device) -> bool:
    """Whether autocast is on for this device."""
    if device == _CPU and not is_autocast_possible():  # it does not know all devices
        return False
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
