"""Controls that show what attention is worth: the same layer without it, and with one output for all queries."""

from torch import Tensor

from laplacianformer.attention._grid import GridAttention, mean_over_tokens
from laplacianformer.attention.laplacian import LaplacianAttention
from laplacianformer.ops._pooling import Size


class NoMixing(GridAttention):
    """Every token keeps its own value: no token sees another, except through the local convolution."""

    mixer = "no-mixing"

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        return v_bhnd


class MeanOverQueries(LaplacianAttention):
    """Laplacian attention whose output is averaged over the queries: no token attends to anything in particular."""

    mixer = "mean-over-queries"

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        mixed_bhnd = super().mix(q_bhnd, k_bhnd, v_bhnd, size, mask)
        return mean_over_tokens(mixed_bhnd, mask).expand_as(mixed_bhnd)


CONTROLS: dict[str, type[GridAttention]] = {kind.mixer: kind for kind in (NoMixing, MeanOverQueries)}
