"""Whether calls are just run, or traced, transformed or observed: the one module that knows.

All of torch's private names that the attention needs are here, each behind a function that says what it answers; the
other modules that need one are listed in tests/test_private_names.py.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_DERIVATIVES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)


def is_traced() -> bool:
    """Whether calls are being recorded or transformed rather than just run.

    True under torch.compile, torch.export, torch.jit.trace, dispatch modes (FLOP counters, fake tensors), the
    transforms of torch.func (vmap, grad) and while a CUDA graph is captured. Sizes may then be symbols, tensors fake,
    and memory the graph's own.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or _in_dispatch_mode()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _is_captured()
    )


def is_unobserved(*arguments: Any) -> bool:
    """Whether nobody but the caller sees what is done with these arguments, so that a registered op may be bypassed.

    Beyond `is_traced`: forward-mode derivatives, subclasses of tensors and batched gradients know registered ops only.
    """
    if is_traced() or forward_ad._current_level >= 0:
        return False
    return all(_is_plain(argument) for argument in arguments if isinstance(argument, Tensor))


def is_compiled() -> bool:
    """Whether torch.compile or torch.export traces this call: compilers fuse plain PyTorch with its neighbours."""
    return torch.compiler.is_compiling()


def has_static_size(size: Sequence[int]) -> bool:
    """Whether code may branch on this size: not while exporting one graph for every size."""
    return not (torch.compiler.is_exporting() and any(isinstance(length, torch.SymInt) for length in size))


def smaller(length: int, most: int) -> int:
    """The minimum; of a symbol that is never below `most`, the number itself, so that exporters have less to prove."""
    if isinstance(length, torch.SymInt):
        from torch.fx.experimental.symbolic_shapes import statically_known_true  # half a second: only where it is used

        if statically_known_true(length >= most):
            return most
    return min(length, most)


def needs_gradient(*arguments: Any) -> bool:
    """Whether autograd records a call with these arguments."""
    return torch.is_grad_enabled() and any(a.requires_grad for a in arguments if isinstance(a, Tensor))


def has_other_derivatives() -> bool:
    """Whether tensors may carry derivatives that torch.library does not know: those of the forward mode, which it would
    drop in silence, and those of torch.func."""
    if torch.compiler.is_compiling():
        return _forward_mode_is_compiled()
    if forward_ad._current_level >= 0:
        return True
    if torch._C._functorch.peek_interpreter_stack() is None:
        return False
    return any(transform.key() in _DERIVATIVES for transform in torch._C._functorch.get_interpreter_stack())


@torch.compiler.assume_constant_result
def _forward_mode_is_compiled() -> bool:
    """Whether torch.compile traces torch.func.jvp. Answered while it traces; the level outside is no guard."""
    return forward_ad._current_level >= 0


def is_bare(*modules: nn.Module) -> bool:
    """Whether calling these modules does what their classes say and nothing else, so that what they compute may be
    computed without calling them: no hooks, and no other `forward`."""
    if torch.nn.modules.module._has_any_global_hook():
        return False
    return not any(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or "forward" in module.__dict__
        for module in modules
    )


def packet_of(function: Any) -> Any:
    """The op, as torch.ops has it, of what a dispatch mode is called with: one of the op's overloads."""
    return function._overloadpacket


def is_autocast_possible() -> bool:
    """Whether autocast may be on for any device: by far the cheapest question about it."""
    return torch._C._is_any_autocast_enabled()


def _in_dispatch_mode() -> bool:
    """Whether this thread is in a dispatch mode; the question that torch itself offers is about all threads."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH)


def _is_captured() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _is_plain(tensor: Tensor) -> bool:
    """No subclass, and not one of many gradients that torch.autograd.grad computes together."""
    return type(tensor) in (Tensor, nn.Parameter) and not torch._C._functorch.is_legacy_batchedtensor(tensor)
