"""The attention layers of a model, and what one image brings to each of them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from laplacianformer.attention import GridAttention
from laplacianformer.attention._landmarks import LandmarkAttention
from laplacianformer.inspect._attention_matrix import token_at
from laplacianformer.model import LaplacianFormer
from laplacianformer.ops._pooling import Size


@dataclass(frozen=True)
class LayerInput:
    """The tokens of one image as one attention layer gets them."""

    name: str
    layer: GridAttention
    tokens: Tensor  # (1, H * W, dim)
    size: Size

    @property
    def landmarks(self) -> Size | None:
        """The grid of landmarks, or None for a layer without landmarks."""
        return self.layer.cells(self.size) if isinstance(self.layer, LandmarkAttention) else None

    @property
    def is_exact(self) -> bool:
        """Whether every token is its own landmark and nothing is solved."""
        return isinstance(self.layer, LandmarkAttention) and self.layer.is_exact(self.size)

    def token(self, point: tuple[float, float]) -> Size:
        """Row and column of the token at a point: x and y from 0 (left, top) to 1 (right, bottom)."""
        return token_at(point, self.size)


def shown_layers(model: LaplacianFormer) -> dict[str, GridAttention]:
    """All attention layers, by a readable name."""
    stages: Any = model.stages
    return {
        f"stage {stage}, block {block}": part.attention
        for stage, parts in enumerate(stages, 1)
        for block, part in enumerate(parts.blocks, 1)
    }


@torch.inference_mode()
def classify(model: LaplacianFormer, image: Tensor) -> tuple[Tensor, list[LayerInput]]:
    """The class probabilities of one image (channels, height, width), and the input of each attention layer."""
    inputs: list[LayerInput] = []

    def record(name: str, layer: Any, arguments: tuple[Tensor, Size]) -> None:
        inputs.append(LayerInput(name, layer, *arguments))

    hooks = [layer.register_forward_pre_hook(partial(record, name)) for name, layer in shown_layers(model).items()]
    try:
        return model(image[None])[0].softmax(0), inputs
    finally:
        for hook in hooks:
            hook.remove()
