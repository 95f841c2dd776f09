"""Processes that stop together: what ends one of them ends all, with the same message; none is left waiting."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from lightning.fabric import Fabric
from torch import Tensor, distributed

from laplacianformer._util.errors import InputError

Made = TypeVar("Made")


def in_each(fabric: Fabric, make: Callable[[], Made]) -> Made:
    """`make()` in every process. If it fails in one, all raise its error."""
    made, problem = None, ""
    try:
        made = make()
    except (InputError, OSError) as error:
        problem = str(error) or type(error).__name__
    if fabric.world_size > 1:
        number = torch.tensor(fabric.global_rank + 1 if problem else 0)
        failed = int(cast(Tensor, fabric.all_reduce(number, reduce_op="max")))
        problem = fabric.broadcast(problem, src=failed - 1) if failed else ""
    if problem:
        raise InputError(problem)
    return cast(Made, made)


def gathered(fabric: Fabric, part: Made) -> list[Made]:
    """The parts of all processes, in all of them."""
    if fabric.world_size == 1:
        return [part]
    parts: list[Any] = [None] * fabric.world_size
    distributed.all_gather_object(parts, part)
    return parts


def in_first(fabric: Fabric, make: Callable[[], Made]) -> Made:
    """`make()` in the first process, its result in all. If it fails, all raise its error."""
    made, problem = None, ""
    if fabric.is_global_zero:
        try:
            made = make()
        except (InputError, OSError) as error:
            problem = str(error) or type(error).__name__
    made, problem = fabric.broadcast((made, problem))
    if problem:
        raise InputError(problem)
    return cast(Made, made)
