"""Numbers that are not finite: the layer where they begin."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError

FINITE = "every layer's output is finite"


def check_outputs(path: Path, outputs: Any, model: nn.Module, *arguments: Any) -> None:
    """Refuse weights whose outputs for these arguments of the model are not finite, and name the layer."""
    if not is_finite(outputs):
        where = first_not_finite(model, *arguments)
        raise InputError(f"{path} gives outputs that are not finite: {where}; its training or its metadata went wrong")


@torch.no_grad()
def first_not_finite(model: nn.Module, images: Any, *more: Any) -> str:
    """Where numbers first stop being finite in the forward pass `model(images, *more)`, in words.

    The model stays in its mode. Processes that share its weights (FSDP) have to call this together.
    """
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        if not whole.isfinite().all():
            return f"the weights {name} are already not finite"
    found: list[str] = []

    def look(name: str, output: Any) -> None:
        if not found and not is_finite(output):
            found.append(name)

    hooks = [
        module.register_forward_hook(lambda module, inputs, output, name=name: look(name, output))
        for name, module in model.named_modules()
        if name
    ]
    try:
        model(images, *more)
    finally:
        for hook in hooks:
            hook.remove()
    if not is_finite(images):
        return "the images themselves are not finite"
    return f"the first layer whose output is not finite is {found[0]}" if found else FINITE


def is_finite(value: Any) -> bool:
    """Whether all tensors in tuples, lists, dictionaries and torchvision's lists of images are finite."""
    value = getattr(value, "tensors", value)
    if isinstance(value, Tensor):
        return bool(value.isfinite().all())
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return all(is_finite(part) for part in parts)
