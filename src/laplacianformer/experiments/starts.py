"""What an arm of a sweep begins with: how alike its landmarks are, and how much of its attention depends on the token.

Where the second is nearly nothing, the arms of a comparison start as the same model, and it says little.
"""

from typing import Any, NamedTuple

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer.attention import LaplacianAttention
from laplacianformer.attention.baselines._nystrom import KernelAttention
from laplacianformer.classification import load_recipe
from laplacianformer.experiments.sweep import Training

IMAGES = 8


class Start(NamedTuple):
    """Means over the layers of a model with its initial weights, in training mode, on smooth random images."""

    off_diagonal: float  # of W, the kernel among landmarks
    fraction: float  # norm of the global branch without its mean over queries, over that of the values

    def __str__(self) -> str:
        return f"{self.off_diagonal:.3f} and {100 * self.fraction:.1f} %"


@torch.no_grad()
def start_of(run: Training) -> Start:
    """The start of a training whose token mixer has landmarks."""
    recipe = load_recipe(run.recipe, run.overrides)
    torch.manual_seed(run.seed)
    model = timm.create_model(recipe.model.name, num_classes=10, **recipe.model.args).train()
    side = recipe.data.size
    images = F.interpolate(torch.randn(IMAGES, 3, side // 4, side // 4), size=(side, side), mode="bicubic")
    found = _observed(model, images)
    return Start(*(sum(values) / len(values) for values in zip(*found, strict=True)))


def _observed(model: nn.Module, images: Tensor) -> list[Start]:
    """Of each layer, in order."""
    found: list[Start] = []

    def observe(layer: Any, inputs: tuple[Any, ...]) -> None:
        x, size = inputs
        q, k, v = layer.project(x, size)
        mixed = layer.mix(q, k, v, size)
        if isinstance(layer, KernelAttention):
            landmarks = layer.points(q, k, size, None)
            w = layer.kernel(landmarks, landmarks)
        else:
            w = layer.factors(x, size).w
        off_diagonal = w[..., ~torch.eye(w.shape[-1], dtype=torch.bool)].mean().item()
        found.append(Start(off_diagonal, ((mixed - mixed.mean(-2, keepdim=True)).norm() / v.norm()).item()))

    kinds = (KernelAttention, LaplacianAttention)
    hooks = [layer.register_forward_pre_hook(observe) for layer in model.modules() if isinstance(layer, kinds)]
    model(images)
    for hook in hooks:
        hook.remove()
    return found
