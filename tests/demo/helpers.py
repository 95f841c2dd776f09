"""What the tests of the page share."""

import math

import torch

from laplacianformer.attention import GridAttention
from laplacianformer.demo.layers import LayerInput

SIZE = (5, 6)


def layer_input(layer: GridAttention) -> LayerInput:
    torch.manual_seed(0)
    tokens = torch.randn(1, math.prod(SIZE), layer.dim, dtype=torch.float64)
    return LayerInput("a layer", layer.double().eval(), tokens, SIZE)
