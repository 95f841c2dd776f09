"""Tables that depend on sizes alone (averaging matrices, rotations) are made once, not on every call."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import Any, TypeVar

import torch

from laplacianformer.ops._tracing import is_traced

Table = TypeVar("Table")

# Kept per function: the tables of one model at a few image sizes, beside the largest one, which every layer of a model
# on a million tokens would make again.
MOST_BYTES = 1 << 25

# The tables of the graph that is being traced, by function and arguments; None where each call makes its own.
_of_this_graph: dict[str, Any] | None = None


@contextmanager
def tables_made_once() -> Iterator[None]:
    """A block in which a traced graph makes each table once, not in every layer. One block per trace."""
    global _of_this_graph
    previous, _of_this_graph = _of_this_graph, {}
    try:
        yield
    finally:
        _of_this_graph = previous


def cached_table(make: Callable[..., Table]) -> Callable[..., Table]:
    """Keep the tensors that `make` returned for its last arguments (hashable, all positional): the largest one, and
    others up to MOST_BYTES.

    Nothing is kept or looked up while calls are traced; `tables_made_once` does that for one graph.
    """
    kept: OrderedDict[Any, Table] = OrderedDict()
    lock = Lock()

    @wraps(make)
    def call(*arguments: Any) -> Table:
        if is_traced():
            if _of_this_graph is None:
                return make(*arguments)
            key = f"{make.__qualname__}{arguments}"  # symbols have no hash, but equal ones are written alike
            if key not in _of_this_graph:
                _of_this_graph[key] = make(*arguments)
            return _of_this_graph[key]
        with lock:
            if arguments in kept:
                kept.move_to_end(arguments)
                return kept[arguments]
            # A tensor made in inference mode could not be used in training later.
            with torch.inference_mode(False), torch.no_grad():
                table = kept[arguments] = make(*arguments)
            while sum(sizes := [*map(_bytes, kept.values())]) - max(sizes) > MOST_BYTES:
                kept.popitem(last=False)
        return table

    return call


def _bytes(table: Any) -> int:
    return sum(tensor.nbytes for tensor in (table if isinstance(table, tuple) else (table,)))
