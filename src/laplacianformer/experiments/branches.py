"""What the global branch of an arm of a sweep is like, before and after training: how alike its landmarks are, and how
much of it depends on the token.

Where the second is nearly nothing, the arms of a comparison are the same model, and it says little.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer import sequences
from laplacianformer.attention import LaplacianAttention
from laplacianformer.attention.baselines._nystrom import KernelAttention
from laplacianformer.classification import load_recipe
from laplacianformer.experiments.sweep import Training
from laplacianformer.experiments.trainings import PROBE
from laplacianformer.sequences import _inpaint as inpaint
from laplacianformer.sequences._task import create_encoder

IMAGES = 8


class Branch(NamedTuple):
    """Means over the layers of a model in training mode, on smooth random images."""

    off_diagonal: float  # of W, the kernel among landmarks
    fraction: float  # norm of the global branch without its mean over queries, over that of the values

    def __str__(self) -> str:
        return f"{self.off_diagonal:.3f} and {100 * self.fraction:.1f} %"


@torch.no_grad()
def branch_of(run: Training, weights: Path | None = None) -> Branch:
    """That of a token mixer with landmarks, at its initial weights, or with those in the file of a training."""
    model, inputs = _probe(run) if run.recipe == PROBE else _classifier(run)
    if weights is not None:
        model.load_state_dict(load_file(weights))
    found = _observed(model.train(), inputs)
    return Branch(*(sum(values) / len(values) for values in zip(*found, strict=True)))


def _classifier(run: Training) -> tuple[nn.Module, Tensor]:
    recipe = load_recipe(run.recipe, run.overrides)
    torch.manual_seed(run.seed)
    model = timm.create_model(recipe.model.name, num_classes=10, **recipe.model.args)
    return model, _smooth(3, recipe.data.size)


def _probe(run: Training) -> tuple[nn.Module, Tensor]:
    recipe = sequences.load_recipe(run.recipe, run.overrides)
    torch.manual_seed(run.seed)
    model = create_encoder(recipe, inpaint.CLASSES)
    pixels = (64 * _smooth(1, math.isqrt(recipe.data.length)) + 128).clamp(0, 255).flatten(1).byte().numpy()
    return model, torch.stack([torch.from_numpy(inpaint.hide(each, 0, n)[0]).long() for n, each in enumerate(pixels)])


def _smooth(channels: int, side: int) -> Tensor:
    """Random images whose neighbouring pixels are alike."""
    coarse = torch.randn(IMAGES, channels, side // 4, side // 4)
    return F.interpolate(coarse, size=(side, side), mode="bicubic")


def _observed(model: nn.Module, inputs: Tensor) -> list[Branch]:
    """Of each layer, in order."""
    found: list[Branch] = []

    def observe(layer: Any, given: tuple[Any, ...]) -> None:
        x, size = given
        q, k, v = layer.project(x, size)
        mixed = layer.mix(q, k, v, size)
        if isinstance(layer, KernelAttention):
            landmarks = layer.points(q, k, size, None)
            w = layer.kernel(landmarks, landmarks)
        else:
            w = layer.factors(x, size).w
        off_diagonal = w[..., ~torch.eye(w.shape[-1], dtype=torch.bool)].mean().item()
        found.append(Branch(off_diagonal, ((mixed - mixed.mean(-2, keepdim=True)).norm() / v.norm()).item()))

    kinds = (KernelAttention, LaplacianAttention)
    hooks = [layer.register_forward_pre_hook(observe) for layer in model.modules() if isinstance(layer, kinds)]
    model(inputs)
    for hook in hooks:
        hook.remove()
    return found
