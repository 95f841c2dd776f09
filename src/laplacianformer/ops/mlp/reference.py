"""The MLP as a composition of its parts: the definition, and what tracing and graphs of gradients use."""

from torch import Tensor
from torch.nn import functional as F

from laplacianformer.ops.gelu import gelu


def mlp(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, backend: str | None = None
) -> Tensor:
    return F.linear(gelu(F.linear(x, weight1, bias1), backend=backend), weight2, bias2)
