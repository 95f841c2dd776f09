"""Token mixers for grids of tokens, all called as `attention(x, (H, W))`."""

from laplacianformer.attention.grid import GridAttention as GridAttention
from laplacianformer.attention.laplacian import Factors as Factors
from laplacianformer.attention.laplacian import LaplacianAttention as LaplacianAttention
from laplacianformer.attention.softmax import SoftmaxAttention as SoftmaxAttention

ATTENTIONS: dict[str, type[GridAttention]] = {"laplacian": LaplacianAttention, "softmax": SoftmaxAttention}
