"""Tables that depend on sizes alone are made once, not on every call."""

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

Table = TypeVar("Table")

# Tables kept for each function: layers of one model and a few image sizes.
MOST = 64


def remembered(make: Callable[..., Table]) -> Callable[..., Table]:
    """Keep what `make` returns for its last arguments (hashable, all positional).

    Nothing is kept or looked up while a graph is traced or a dispatch mode is on: sizes may be symbols there,
    and tensors fake.
    """
    kept: OrderedDict[Any, Table] = OrderedDict()

    @wraps(make)
    def call(*arguments: Any) -> Table:
        if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
            return make(*arguments)
        table = kept.get(arguments)
        if table is None:
            # A tensor made in inference mode could not be used in training later.
            with torch.inference_mode(False), torch.no_grad():
                table = kept[arguments] = make(*arguments)
            while len(kept) > MOST:
                kept.popitem(last=False)
        return table

    return call
