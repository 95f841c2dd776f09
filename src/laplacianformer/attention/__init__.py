"""Token mixers for grids of tokens, all called as `attention(x, (H, W))`; docs/baselines.md compares them."""

from laplacianformer.attention._factors import Decomposition, Factors
from laplacianformer.attention._grid import GridAttention
from laplacianformer.attention.ablation import AblationAttention
from laplacianformer.attention.baselines.cosformer import CosformerAttention
from laplacianformer.attention.baselines.hedgehog import HedgehogAttention
from laplacianformer.attention.baselines.inline import InlineAttention
from laplacianformer.attention.baselines.linear import LinearAttention
from laplacianformer.attention.baselines.nystromformer import NystromformerAttention
from laplacianformer.attention.baselines.performer import PerformerAttention
from laplacianformer.attention.baselines.skyformer import SkyformerAttention
from laplacianformer.attention.baselines.soft import SoftAttention
from laplacianformer.attention.baselines.soft_plus_plus import SoftPlusPlusAttention
from laplacianformer.attention.baselines.softmax import SoftmaxAttention
from laplacianformer.attention.baselines.spatial_reduction import SpatialReductionAttention
from laplacianformer.attention.laplacian import LaplacianAttention

__all__ = [
    "ATTENTIONS",
    "AblationAttention",
    "CosformerAttention",
    "Decomposition",
    "Factors",
    "GridAttention",
    "HedgehogAttention",
    "InlineAttention",
    "LaplacianAttention",
    "LinearAttention",
    "NystromformerAttention",
    "PerformerAttention",
    "SkyformerAttention",
    "SoftAttention",
    "SoftPlusPlusAttention",
    "SoftmaxAttention",
    "SpatialReductionAttention",
]

ATTENTIONS: dict[str, type[GridAttention]] = {
    "laplacian": LaplacianAttention,
    "ablation": AblationAttention,
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
    "spatial-reduction": SpatialReductionAttention,
}
