"""Token mixers for grids of tokens, all called as `attention(x, (H, W))`; docs/attention.md compares them."""

from laplacianformer.attention.baselines.cosformer import CosformerAttention as CosformerAttention
from laplacianformer.attention.baselines.hedgehog import HedgehogAttention as HedgehogAttention
from laplacianformer.attention.baselines.inline import InlineAttention as InlineAttention
from laplacianformer.attention.baselines.linear import LinearAttention as LinearAttention
from laplacianformer.attention.baselines.nystromformer import NystromformerAttention as NystromformerAttention
from laplacianformer.attention.baselines.performer import PerformerAttention as PerformerAttention
from laplacianformer.attention.baselines.skyformer import SkyformerAttention as SkyformerAttention
from laplacianformer.attention.baselines.soft import SoftAttention as SoftAttention
from laplacianformer.attention.baselines.soft_plus_plus import SoftPlusPlusAttention as SoftPlusPlusAttention
from laplacianformer.attention.baselines.softmax import SoftmaxAttention as SoftmaxAttention
from laplacianformer.attention.grid import GridAttention as GridAttention
from laplacianformer.attention.laplacian import Factors as Factors
from laplacianformer.attention.laplacian import LaplacianAttention as LaplacianAttention

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

AblationAttention = LaplacianAttention  # until attention/ablation.py is there
ATTENTIONS["ablation"] = AblationAttention
