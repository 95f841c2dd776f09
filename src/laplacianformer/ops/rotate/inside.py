"""Rotations inside the kernel ops: where the backend can, the rotated rows are never stored."""

from typing import Any

from torch import Tensor

from laplacianformer.ops._backend import Backends
from laplacianformer.ops._tracing import is_compiled
from laplacianformer.ops.rotate.op import constants, rotate

Rotation = tuple[Tensor, Tensor]


def take_inside(
    backends: Backends[Any],
    x: Tensor,
    y: Tensor,
    x_rotation: Rotation | None,
    y_rotation: Rotation | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x and y, and the cosines and sines by which the op rotates the longer of them itself (x, if they are equal).

    What it can't rotate is rotated here. Only the C++ backend rotates rows, as it reads them; compilers fuse a plain
    rotation with what comes before it.
    """
    if x_rotation is None and y_rotation is None:
        return x, y, None, None
    inside = not is_compiled() and backends.name(backend, x, y) == "cpu"
    x_is_longer = x.shape[-2] >= y.shape[-2]
    if x_rotation is not None and not (inside and x_is_longer):
        x, x_rotation = rotate(x, *x_rotation, backend=backend or None), None
    if y_rotation is not None and not (inside and not x_is_longer):
        y, y_rotation = rotate(y, *y_rotation, backend=backend or None), None
    if x_rotation is not None:
        return x, y, *constants(backends.op, x, *x_rotation)
    if y_rotation is not None:
        return x, y, *constants(backends.op, y, *y_rotation)
    return x, y, None, None
