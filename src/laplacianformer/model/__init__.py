"""The backbone, its six sizes, and the timm contract."""

from laplacianformer.model.backbone import LaplacianFormer
from laplacianformer.model.sizes import (  # registers the sizes with timm
    default_cfgs,
    laplacianformer_huge,
    laplacianformer_large,
    laplacianformer_medium,
    laplacianformer_nano,
    laplacianformer_small,
    laplacianformer_tiny,
)

__all__ = [
    "LaplacianFormer",
    "default_cfgs",
    "laplacianformer_huge",
    "laplacianformer_large",
    "laplacianformer_medium",
    "laplacianformer_nano",
    "laplacianformer_small",
    "laplacianformer_tiny",
]
