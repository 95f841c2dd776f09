"""Options that `LaplacianAttention` had once: the error for each says what to use now."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

_MOVED = frozenset({"kernel", "gram", "solver", "start", "gradient", "ratio", "landmarks", "tied"})
Layer = TypeVar("Layer")
Options = ParamSpec("Options")
Init = Callable[Concatenate[Layer, Options], None]


def name_replacements(init: Init[Layer, Options]) -> Init[Layer, Options]:
    """The constructor, with an error of one line for options that are gone."""

    @wraps(init)
    def checked(self: Layer, /, *arguments: Options.args, **options: Options.kwargs) -> None:
        given: dict[str, Any] = options
        moved = ", ".join(sorted(_MOVED & given.keys()))
        if moved:
            raise TypeError(
                f"{type(self).__name__} does not take {moved}: use AblationAttention, which does "
                '(attention="ablation" in a model)'
            )
        if "sync" in given:
            raise TypeError(f'{type(self).__name__} does not take sync: use whitening="synced"')
        init(self, *arguments, **options)

    return checked
