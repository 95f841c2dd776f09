"""The MLP of a block."""

from timm.layers import Mlp
from torch import Tensor, nn

from laplacianformer import ops
from laplacianformer.ops._tracing import is_bare


class Gelu(nn.Module):
    """`ops.gelu`."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x)


class FusedMlp(Mlp):  # type: ignore[misc]
    """timm's MLP with `ops.gelu`, computed by `ops.mlp` where nobody can see a difference: where its layers are as they
    were made, without hooks, and no dropout is active between them."""

    def __init__(self, dim: int, hidden: int, drop: float) -> None:
        super().__init__(dim, hidden, act_layer=Gelu, drop=drop)

    def forward(self, x: Tensor) -> Tensor:
        if not self._is_plain():
            return super().forward(x)
        out = ops.mlp(x, self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias)
        return self.drop2(out)

    def _is_plain(self) -> bool:
        kinds = type(self.fc1), type(self.act), type(self.norm), type(self.fc2)
        if kinds != (nn.Linear, Gelu, nn.Identity, nn.Linear) or self.fc1.bias is None or self.fc2.bias is None:
            return False
        if type(self.drop1) is not nn.Dropout or (self.drop1.training and self.drop1.p > 0):
            return False
        return is_bare(self.fc1, self.act, self.drop1, self.norm, self.fc2)
