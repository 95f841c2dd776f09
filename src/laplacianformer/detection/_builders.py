"""torchvision's RetinaNet and Mask R-CNN on a backbone of timm.

Both take a list of images (3, H, W) from 0 to 1 and, in training, a list of targets: boxes (N, 4) as x0, y0, x1, y1 in
pixels, labels (N,) from 1 to num_classes and, for Mask R-CNN, masks (N, H, W). In training they return a dictionary of
losses, in evaluation boxes, labels, scores and masks of each image. They resize and normalise images themselves.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from torch import nn
from torchvision.models.detection import MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7
from torchvision.ops.poolers import LevelMapper

from laplacianformer._util.limits import finite, shown
from laplacianformer.detection._backbone import FeaturePyramid, note_padding
from laplacianformer.training._backbone_start import given_arguments, load_start, with_conversion
from laplacianformer.training._feature_maps import FeatureMaps
from laplacianformer.training._feature_maps import parameter_groups as backbone_groups

_RATIOS = (0.5, 1.0, 2.0)  # height over width of the anchors
_OCTAVES = (1.0, 2 ** (1 / 3), 2 ** (2 / 3))  # sizes of RetinaNet's anchors within a level

# Layers with one output per class: they keep their random weights if a file to start from has other classes.
_PER_CLASS = (
    "roi_heads.box_predictor.",
    "roi_heads.mask_predictor.mask_fcn_logits.",
    "head.classification_head.cls_log",
)

Arguments = ParamSpec("Arguments")
Model = TypeVar("Model", MaskRCNN, RetinaNet)


def _builder(build: Callable[Arguments, Model]) -> Callable[Arguments, Model]:
    """Keep what a model is built with in `model.detector` and `model.arguments`, for weights files."""

    @wraps(build)
    def built(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Model:
        arguments = with_conversion(given_arguments(build, *args, **kwargs))
        make: Any = build  # by names: `options` are among them
        model: Any = note_padding(make(**arguments))
        weights = arguments.pop("weights")
        model.detector, model.arguments = build.__name__, arguments
        if weights is not None:
            load_start(model, Path(weights), "detection", model.backbone.maps, _PER_CLASS)
        return model

    return built


@_builder  # long: its arguments, and what they mean
def mask_rcnn(
    backbone: str = "laplacianformer_tiny",
    num_classes: int = 80,
    weights: Path | str | None = None,
    *,
    backbone_args: Mapping[str, Any] | None = None,
    frozen_stages: int = 0,
    frozen_statistics: bool = False,
    channels: int = 256,
    norm: bool = False,
    anchor_scale: float = 8.0,
    head_width: int = 1024,
    mask_layers: Sequence[int] = (256, 256, 256, 256),
    crop_samples: int = 2,
    short_side: int | Sequence[int] = 800,
    long_side: int = 1333,
    mean: Sequence[float] = (0.485, 0.456, 0.406),
    std: Sequence[float] = (0.229, 0.224, 0.225),
    **options: Any,
) -> MaskRCNN:
    """Mask R-CNN with a feature pyramid over those of the strides 4 to 32 that the backbone has, and a pooled level.

    Args:
        backbone: a name of timm.create_model.
        num_classes: number of classes, without the background.
        weights: a weights file to start from: a classifier, for the backbone, or this kind of detector, for everything.
        backbone_args: of timm.create_model, for example {"drop_path_rate": 0.1} for stochastic depth.
        frozen_stages: number of stages of the backbone, from the first, that don't train.
        frozen_statistics: whitening and batch norm of the backbone keep the statistics that they have.
        channels: of the pyramid.
        norm: group norms in the pyramid and the mask head; helps if the backbone is not pretrained.
        anchor_scale: side of a square anchor over the stride of its level.
        head_width: of the two linear layers of the box head.
        mask_layers: channels of the convolutions of the mask head.
        crop_samples: points per axis that a cell of a crop from the pyramid averages; 1 costs less.
        short_side, long_side: pixels that images are resized to; of a sequence, each training image draws one.
        mean, std: of the pixels, for normalisation.
        options: of torchvision's MaskRCNN, for example rpn_pre_nms_top_n_train=500.
    """
    maps = FeatureMaps(
        backbone, backbone_args or {}, 4, 32, frozen_stages=frozen_stages, frozen_statistics=frozen_statistics
    )
    layer = _group_norm if norm else None
    pyramid = FeaturePyramid(maps, channels, LastLevelMaxPool(), layer)
    anchors = _anchors([*maps.strides, 2 * maps.strides[-1]], anchor_scale, (1.0,))
    return MaskRCNN(
        pyramid,
        rpn_anchor_generator=anchors,
        box_roi_pool=_crops(maps.strides, 7, crop_samples, anchor_scale),
        box_head=TwoMLPHead(channels * 7 * 7, head_width),
        box_predictor=FastRCNNPredictor(head_width, num_classes + 1),
        mask_roi_pool=_crops(maps.strides, 14, crop_samples, anchor_scale),
        mask_head=MaskRCNNHeads(channels, mask_layers, 1, norm_layer=layer),
        mask_predictor=MaskRCNNPredictor(mask_layers[-1], mask_layers[-1], num_classes + 1),
        **_transform(maps, short_side, long_side, mean, std),
        **_known(MaskRCNN, options),
    )


@_builder
def retinanet(
    backbone: str = "laplacianformer_tiny",
    num_classes: int = 80,
    weights: Path | str | None = None,
    *,
    backbone_args: Mapping[str, Any] | None = None,
    frozen_stages: int = 0,
    frozen_statistics: bool = False,
    channels: int = 256,
    norm: bool = False,
    anchor_scale: float = 4.0,
    finest_stride: int = 8,
    short_side: int | Sequence[int] = 800,
    long_side: int = 1333,
    mean: Sequence[float] = (0.485, 0.456, 0.406),
    std: Sequence[float] = (0.229, 0.224, 0.225),
    **options: Any,
) -> RetinaNet:
    """RetinaNet with a feature pyramid over those of the strides 8 to 32 that the backbone has, and P6 and P7.

    Args:
        finest_stride: 4 adds the finest map of the pyramid, at four times the cost of the heads.
        norm: group norms in the pyramid and the heads; helps if the backbone is not pretrained.
        anchor_scale: side of the smallest square anchor over the stride of its level; each level has three sizes.
        options: of torchvision's RetinaNet, for example detections_per_img=100.

    The other arguments are those of `mask_rcnn`.
    """
    maps = FeatureMaps(
        backbone,
        backbone_args or {},
        finest_stride,
        32,
        frozen_stages=frozen_stages,
        frozen_statistics=frozen_statistics,
    )
    layer = _group_norm if norm else None
    pyramid = FeaturePyramid(maps, channels, LastLevelP6P7(maps.channels[-1], channels), layer)
    last = maps.strides[-1]
    anchors = _anchors([*maps.strides, 2 * last, 4 * last], anchor_scale, _OCTAVES)
    head = RetinaNetHead(channels, len(_RATIOS) * len(_OCTAVES), num_classes + 1, norm_layer=layer)
    return RetinaNet(
        pyramid,
        num_classes + 1,
        anchor_generator=anchors,
        head=head,
        **_transform(maps, short_side, long_side, mean, std),
        **_known(RetinaNet, options),
    )


BUILDERS: dict[str, Callable[..., Any]] = {"mask_rcnn": mask_rcnn, "retinanet": retinanet}


def parameter_groups(
    model: MaskRCNN | RetinaNet, weight_decay: float = 0.05, layer_decay: float = 1.0
) -> list[dict[str, Any]]:
    """Groups of parameters for an optimiser: no weight decay on norms and biases, and in the backbone a learning rate
    that shrinks by the factor `layer_decay` per layer towards the input (`lr_scale`, which timm's schedules apply)."""
    return backbone_groups(model, model.backbone.maps, weight_decay, layer_decay)


def _known(kind: type[nn.Module], options: dict[str, Any]) -> dict[str, Any]:
    """The options, if torchvision's class has them all and can use them; it accepts others silently."""
    parameters = inspect.signature(kind).parameters
    known = {name: one.default for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD}
    for name, value in options.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise TypeError(f"{kind.__name__} has no option {name}{hint}")
        expected = _unlike(known[name], value, "weights" in name)
        if expected:
            raise TypeError(f"{kind.__name__}: {name} must be {expected}, got {shown(value)}")
    return options


def _unlike(default: Any, value: Any, weights: bool) -> str | None:
    """What an option with this default must be, if the value is something else."""
    if weights:
        good = isinstance(value, Sequence) and len(value) == 4 and all(map(finite, value)) and min(value) > 0
        return None if good or value is None else "four numbers above 0"
    if isinstance(default, int):
        return None if isinstance(value, int) and finite(value) and value >= 0 else "a whole number from 0 on"
    if isinstance(default, float):
        return None if finite(value) else "a finite number"
    return "an object, not a value" if isinstance(value, str | float | int | Mapping | Sequence) else None


def _anchors(strides: Sequence[int], scale: float, octaves: Sequence[float]) -> AnchorGenerator:
    sizes = tuple(tuple(scale * stride * octave for octave in octaves) for stride in strides)
    return AnchorGenerator(sizes, (_RATIOS,) * len(strides))


def _crops(strides: Sequence[int], size: int, samples: int, anchor_scale: float) -> MultiScaleRoIAlign:
    """Crops boxes from the level with anchors of about their size: 224 pixels from stride 16, for a scale of 8."""
    canonical, levels = round(28 * anchor_scale), [str(level) for level in range(len(strides))]
    pool = MultiScaleRoIAlign(levels, size, sampling_ratio=samples, canonical_scale=canonical)
    # Stated: torchvision would infer the strides from the first batch, without its padding, and keep what it found.
    pool.scales = [1 / stride for stride in strides]
    pool.map_levels = LevelMapper(strides[0].bit_length() - 1, strides[-1].bit_length() - 1, canonical)
    return pool


def _group_norm(channels: int) -> nn.GroupNorm:
    """Groups of 8 channels: 32 groups for 256."""
    return nn.GroupNorm(max(1, channels // 8), channels)


def _transform(
    maps: FeatureMaps, short_side: int | Sequence[int], long_side: int, mean: Sequence[float], std: Sequence[float]
) -> dict[str, Any]:
    return {
        "min_size": short_side if isinstance(short_side, int) else tuple(short_side),
        "max_size": long_side,
        "image_mean": list(mean),
        "image_std": list(std),
        "size_divisible": maps.strides[-1],
    }
