"""The named sizes, registered with timm: `import laplacianformer`, then `timm.create_model("laplacianformer_tiny")`.

They are solved from the paper's parameters and FLOPs (docs/paper.md).
"""

from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from laplacianformer import assets
from laplacianformer._util import settings
from laplacianformer.model._probe import Probe
from laplacianformer.model.backbone import LaplacianFormer


def _create(
    name: str,
    pretrained: bool,
    arguments: dict[str, Any],
    *,
    kind: type[LaplacianFormer] = LaplacianFormer,
    stages: int = 4,
    **size: Any,
) -> nn.Module:
    model: nn.Module = build_model_with_cfg(
        kind,
        name,
        pretrained,
        pretrained_filter_fn=_with_settings,
        feature_cfg={"out_indices": tuple(range(stages)), "feature_cls": "getter"},
        **{**size, **arguments},
    )
    if isinstance(model, LaplacianFormer):
        timms_own = {"pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}
        model.arguments = {key: value for key, value in arguments.items() if key not in timms_own}
    return model


def _with_settings(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Weights inside the package with the settings that they were made with: their file is older than such entries."""
    config: Any = model.pretrained_cfg
    if config.get("file") != str(assets.PATH):
        return state
    with torch.device("meta"):
        made = laplacianformer_nano(**assets.model_arguments())
    return {**settings.entries(made.state_dict()), **state}


def _cfg(**overrides: Any) -> dict[str, Any]:
    return {
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "fixed_input_size": False,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "first_conv": "stages.0.embedding.proj",
        "classifier": "head",
        "license": "apache-2.0",
        **overrides,
    }


default_cfgs = generate_default_cfgs(
    {
        "laplacianformer_nano": _cfg(input_size=(3, 32, 32), pool_size=(2, 2), crop_pct=1.0),
        "laplacianformer_tiny": _cfg(),
        "laplacianformer_small": _cfg(),
        "laplacianformer_medium": _cfg(),
        "laplacianformer_large": _cfg(),
        "laplacianformer_huge": _cfg(),
        "attention_probe": _cfg(input_size=(3, 32, 32), pool_size=(8, 8), crop_pct=1.0, fixed_input_size=True),
    }
)


@register_model
def laplacianformer_nano(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """1.3 M parameters, for images of 28 to 64 pixels and for small devices: the stem has stride 2.

    Pretrained on CIFAR-10, where the package comes with the weights.
    """
    kwargs = assets.as_pretrained(kwargs) if pretrained else kwargs
    widths: dict[str, Any] = {
        "embed_dims": (32, 64, 128, 160),
        "num_heads": (1, 2, 4, 5),
        "stem_kernel": 3,
        "stem_stride": 2,
    }
    return _create("laplacianformer_nano", pretrained, kwargs, depths=(2, 2, 2, 1), **widths)


@register_model
def laplacianformer_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The size "tiny" of the paper; there are no weights for it."""
    return _create("laplacianformer_tiny", pretrained, kwargs, depths=(2, 2, 2, 2))


@register_model
def laplacianformer_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The size "small" of the paper; there are no weights for it."""
    return _create("laplacianformer_small", pretrained, kwargs, depths=(2, 4, 10, 3))


@register_model
def laplacianformer_medium(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The size "medium" of the paper; there are no weights for it."""
    return _create("laplacianformer_medium", pretrained, kwargs, depths=(2, 4, 19, 6))


@register_model
def laplacianformer_large(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The size "large" of the paper; there are no weights for it."""
    return _create("laplacianformer_large", pretrained, kwargs, depths=(2, 6, 32, 6))


@register_model
def laplacianformer_huge(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The size "huge" of the paper; there are no weights for it."""
    return _create("laplacianformer_huge", pretrained, kwargs, depths=(4, 4, 50, 4))


@register_model
def attention_probe(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """0.1 M parameters, for images of 32 pixels: nothing but the attention mixes tokens. There are no weights for it.

    See `Probe`.
    """
    return _create("attention_probe", pretrained, kwargs, kind=Probe, stages=1)
