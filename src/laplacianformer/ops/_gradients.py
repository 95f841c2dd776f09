"""The gradients of a fused op by plain operations, for everyone who has to observe them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from laplacianformer.ops._precision import without_autocast


def gradients_by(
    composition: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of `composition(*inputs)` for those inputs that need one, None for the others.

    It is for the backward of an autograd.Function whose own kernels can't be observed: it serves second derivatives,
    batched gradients and FLOP counters. An input may be None, and is handed on.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), without_autocast(grad.device):
        # Views, each with a gradient of its own: two inputs may be one tensor.
        views = [None if given is None else given.view_as(given) for given in inputs]
        wanted = [view for view in views if view is not None and view.requires_grad]
        found = iter(torch.autograd.grad(composition(*views), wanted, grad, create_graph=create_graph))
    return [next(found) if view is not None and view.requires_grad else None for view in views]
