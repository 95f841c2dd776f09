"""The backbone, its six sizes, the probe of token mixers, and the timm contract."""

from laplacianformer.model._probe import Probe
from laplacianformer.model.backbone import LaplacianFormer
from laplacianformer.model.sizes import (  # registers the sizes with timm
    attention_probe,
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
    "Probe",
    "attention_probe",
    "default_cfgs",
    "laplacianformer_huge",
    "laplacianformer_large",
    "laplacianformer_medium",
    "laplacianformer_nano",
    "laplacianformer_small",
    "laplacianformer_tiny",
]
