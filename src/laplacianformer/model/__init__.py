"""The backbone, its six sizes, and the timm contract."""

from laplacianformer.model.backbone import LaplacianFormer
from laplacianformer.model.sizes import default_cfgs  # registers the sizes with timm

__all__ = ["LaplacianFormer", "default_cfgs"]
