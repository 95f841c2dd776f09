"""Ops of torch.library that cost no more than a function call where nobody needs the registration."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplacianformer.ops._precision import without_autocast
from laplacianformer.ops._tracing import has_other_derivatives, is_unobserved, needs_gradient


class RegisteredOp:
    """A custom op that is called directly, not through torch.library, wherever the result is the same.

    The way through the library takes longer than a small op itself.

    Args:
        composition: the same in functions of PyTorch, for derivatives that the library does not know.
    """

    def __init__(self, name: str, function: Callable[..., Any], composition: Callable[..., Any]) -> None:
        self.function, self.composition = function, composition
        self.op = torch.library.custom_op(name, function, mutates_args=())
        self.register_fake = self.op.register_fake

    def register_autograd(
        self, backward: Callable[..., Any], setup_context: Callable[..., None] = lambda ctx, inputs, output: None
    ) -> None:
        def forward(ctx: Any, *arguments: Any) -> Any:
            output = self.function(*arguments)
            setup_context(ctx, arguments, output)
            return output

        self.op.register_autograd(backward, setup_context=setup_context)
        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self.differentiable: Any = type(self.function.__name__.lstrip("_"), (torch.autograd.Function,), methods)

    def __call__(self, *arguments: Any) -> Any:
        if not is_unobserved(*arguments):
            if has_other_derivatives():
                return self._compose(*arguments)
            return self.op(*arguments)
        return (self.differentiable.apply if needs_gradient(*arguments) else self.function)(*arguments)

    def _compose(self, *arguments: Any) -> Any:
        devices = [argument.device for argument in arguments if isinstance(argument, Tensor)]
        with without_autocast(devices[0]):
            return self.composition(*arguments)


def registered(name: str, composition: Callable[..., Any]) -> Callable[[Callable[..., Any]], RegisteredOp]:
    """Register a function as the op of this name."""
    return lambda function: RegisteredOp(name, function, composition)
