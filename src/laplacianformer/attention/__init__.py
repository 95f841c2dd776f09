"""Token mixers for grids of tokens, all called as `attention(x, (H, W))`; docs/attention.md compares them."""

from laplacianformer.attention.cosformer import CosformerAttention as CosformerAttention
from laplacianformer.attention.grid import GridAttention as GridAttention
from laplacianformer.attention.hedgehog import HedgehogAttention as HedgehogAttention
from laplacianformer.attention.inline import InlineAttention as InlineAttention
from laplacianformer.attention.laplacian import Factors as Factors
from laplacianformer.attention.laplacian import LaplacianAttention as LaplacianAttention
from laplacianformer.attention.linear import LinearAttention as LinearAttention
from laplacianformer.attention.nystromformer import NystromformerAttention as NystromformerAttention
from laplacianformer.attention.performer import PerformerAttention as PerformerAttention
from laplacianformer.attention.skyformer import SkyformerAttention as SkyformerAttention
from laplacianformer.attention.soft import SoftAttention as SoftAttention
from laplacianformer.attention.soft_plus_plus import SoftPlusPlusAttention as SoftPlusPlusAttention
from laplacianformer.attention.softmax import SoftmaxAttention as SoftmaxAttention

ATTENTIONS: dict[str, type[GridAttention]] = {
    "laplacian": LaplacianAttention,
    "softmax": SoftmaxAttention,
    "soft": SoftAttention,
    "soft++": SoftPlusPlusAttention,
    "skyformer": SkyformerAttention,
    "nystromformer": NystromformerAttention,
    "performer": PerformerAttention,
    "linear": LinearAttention,
    "cosformer": CosformerAttention,
    "inline": InlineAttention,
    "hedgehog": HedgehogAttention,
}
