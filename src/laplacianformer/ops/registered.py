"""Ops of torch.library that cost no more than a call of a function where nobody needs the registration."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch


class RegisteredOp:
    """A custom op that is called without torch.library wherever that is the same.

    The way through the library takes longer than a small op does.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.function = function
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
        if not unwatched(*arguments):
            if _differentiates_forward(*arguments):
                raise NotImplementedError(f"{self.function.__name__.lstrip('_')}: only backward derivatives are there")
            return self.op(*arguments)
        return (self.differentiable.apply if wants_gradient(*arguments) else self.function)(*arguments)


def registered(name: str) -> Callable[[Callable[..., Any]], RegisteredOp]:
    """Register a function as the op of this name."""
    return lambda function: RegisteredOp(name, function)


def unwatched(*arguments: Any) -> bool:
    """Whether nobody but the caller sees what is done with these arguments.

    Compilers, tracers, FLOP counters, forward derivatives, subclasses of tensors and vmap know registered ops only.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or _in_a_mode() or _transformed():
        return False
    if forward_ad._current_level >= 0:
        return False
    return all(_is_plain(argument) for argument in arguments if isinstance(argument, Tensor))


def wants_gradient(*arguments: Any) -> bool:
    return torch.is_grad_enabled() and any(a.requires_grad for a in arguments if isinstance(a, Tensor))


def _in_a_mode() -> bool:
    """Whether this thread is in a mode of torch.utils._python_dispatch, whose own question is asked of all threads."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH)


def _transformed() -> bool:
    """Whether a transformation of torch.func is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _differentiates_forward(*arguments: Any) -> bool:
    """Whether one of them carries a forward derivative, which torch.library would drop in silence."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return False
    return any(forward_ad.unpack_dual(a).tangent is not None for a in arguments if isinstance(a, Tensor))


def _is_plain(tensor: Tensor) -> bool:
    """No subclass, and not one of many gradients that torch.autograd.grad takes together."""
    return type(tensor) in (Tensor, nn.Parameter) and not torch._C._functorch.is_legacy_batchedtensor(tensor)
