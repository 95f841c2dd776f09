"""Linear layers of models, which stay `nn.Linear`, computed by `ops.linear`."""

from torch import Tensor, nn

from laplacianformer import ops
from laplacianformer.ops._tracing import is_bare


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """layer(x), without calling the layer where nobody can see a difference: where it is as it was made, without
    hooks."""
    if type(layer) is nn.Linear and is_bare(layer):
        return ops.linear(x, layer.weight, layer.bias)
    out: Tensor = layer(x)
    return out
