"""What the new layers may learn (`convert.learn`): everything, everything but the scale of each head, updates of low
rank, or scale and gain of each head.

The kernel knows one scale, so a scale per head is a factor of the head's queries and keys: exp(-|cq - ck|_1 / scale).
Where it has to stay, the projections learn, divided by what their norm grew by. While layers learn, factors and updates
stand beside the projections; in the end they are folded into them, and the layer is like any other.
"""

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer._util.errors import InputError
from laplacianformer.attention import GridAttention, LaplacianAttention
from laplacianformer.convert._recipe import Convert


class Adapted(nn.Module):
    """A linear layer whose matrix stays as it is, with what learns beside it.

    Args:
        linear: the layer.
        heads: of the queries and keys in its output, which get a factor each; 0: no factors.
        rank: of the update of the matrix; 0: no update.
        kept: the matrix learns, and the factors keep the norm of each head's queries and keys, and so its scale.
    """

    def __init__(self, linear: nn.Linear, *, heads: int = 0, rank: int = 0, kept: bool = False) -> None:
        super().__init__()
        self.linear, self.heads, self.rank = linear, heads, rank
        linear.weight.requires_grad_(kept)
        self.norm_h: Tensor | None
        self.register_buffer("norm_h", self._norms().detach() if kept else None)
        if heads and not kept:
            self.log_scale = nn.Parameter(linear.weight.new_zeros(heads))
        if rank:
            bound = linear.in_features**-0.5  # as that of nn.Linear
            self.down = nn.Parameter(linear.weight.new_empty(rank, linear.in_features).uniform_(-bound, bound))
            self.up = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))

    @property
    def weight(self) -> Tensor:
        """The matrix with its update, the rows of queries and keys times their factors."""
        weight: Tensor = self.linear.weight
        if self.rank:
            with torch.autocast(weight.device.type, enabled=False):  # what is folded is what was trained
                weight = weight + self.up @ self.down
        return weight * self._factors()[:, None] if self.heads else weight

    @property
    def bias(self) -> Tensor | None:
        bias: Tensor | None = self.linear.bias
        return bias * self._factors() if self.heads and bias is not None else bias

    def _factors(self) -> Tensor:
        """One per row: queries, keys, and ones for the values."""
        inputs, outputs = self.linear.in_features, self.linear.out_features
        of_heads = self.log_scale.exp() if self.norm_h is None else self.norm_h / self._norms()
        of_heads = of_heads.repeat_interleave(inputs // self.heads)
        return torch.cat([of_heads.repeat(outputs // inputs - 1), torch.ones_like(of_heads)])

    def _norms(self) -> Tensor:
        """Of the rows of queries and keys, with their biases, of each head."""
        linear = self.linear
        rows = linear.weight if linear.bias is None else torch.cat([linear.weight, linear.bias[:, None]], dim=1)
        of_heads = rows[: -linear.in_features].unflatten(0, (-1, self.heads, linear.in_features // self.heads))
        return of_heads.square().sum((0, 2, 3)).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    @torch.no_grad()
    def folded(self) -> nn.Linear:
        """The layer alone, which computes the same."""
        weight, bias = self.weight, self.bias
        self.linear.weight.copy_(weight)
        if bias is not None:
            self.linear.bias.copy_(bias)
        return self.linear


def adapt(layers: Iterable[GridAttention], convert: Convert) -> None:
    """Leave the layers free to learn what the recipe says, and nothing else."""
    if convert.learn == "all":
        return
    kept, rank = convert.learn == "directions", convert.rank if convert.learn == "low-rank" else 0
    for layer in layers:
        scaled = isinstance(layer, LaplacianAttention)  # other mixers know no scale: low-rank updates alone
        if not scaled and not rank:
            raise InputError(
                f"convert.learn={convert.learn} needs Laplacian attention, and {layer.mixer} has no scale: give "
                "low-rank or all"
            )
        if rank > layer.dim:
            raise InputError(f"convert.rank={rank} is more than the {layer.dim} channels of a layer: give a lower one")
        if not rank and not kept:
            for name, parameter in layer.named_parameters():
                parameter.requires_grad_(name == "gain")
        heads = layer.num_heads if scaled else 0
        layer.qkv = Adapted(layer.qkv, heads=heads, rank=rank, kept=kept)  # type: ignore[assignment]
        if rank:
            layer.proj = Adapted(layer.proj, rank=rank)  # type: ignore[assignment]


def fold(model: nn.Module) -> None:
    """Fold what was learned beside projections into them."""
    for layer in model.modules():
        if isinstance(layer, GridAttention) and isinstance(layer.qkv, Adapted):
            layer.qkv = layer.qkv.folded()
            if isinstance(layer.proj, Adapted):
                layer.proj = layer.proj.folded()
            layer.requires_grad_(True)


def folded(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state of the model without anything beside projections."""
    found = dict(state)
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            twin, start = copy.deepcopy(module), f"{name}."
            twin.load_state_dict({key.removeprefix(start): found.pop(key) for key in state if key.startswith(start)})
            found |= {start + key: tensor for key, tensor in twin.folded().state_dict().items()}
    return found
