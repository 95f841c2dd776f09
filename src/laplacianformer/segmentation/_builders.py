"""Semantic FPN and UPerNet on a backbone of timm, with the decoders of segmentation_models_pytorch.

Both take normalised images (B, 3, H, W) of any size and return logits (B, num_classes, H, W).
"""

from collections.abc import Callable, Mapping
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, ParamSpec

from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer._util.errors import InputError
from laplacianformer.model import LaplacianFormer
from laplacianformer.training._backbone_start import given_arguments, load_start, with_conversion
from laplacianformer.training._feature_maps import FeatureMaps
from laplacianformer.training._feature_maps import parameter_groups as backbone_groups

_MAPS = 4  # feature maps that a decoder takes
_PER_CLASS = ("classifier.",)  # keeps its random weights if a file to start from has other classes

Arguments = ParamSpec("Arguments")


class Segmenter(nn.Module):
    """A backbone, a decoder that merges its last four feature maps at the finest of their strides, and a classifier of
    pixels. `semantic_fpn` and `upernet` build one.

    A token of a map stands for the pixels below and right of its position, so maps of an image whose sides are not
    multiples of the last stride are padded with zeros there: to a convolution this is the border of the image.
    """

    def __init__(self, maps: FeatureMaps, decoder: nn.Module, channels: int, num_classes: int) -> None:
        super().__init__()
        self.maps, self.decoder, self.num_classes = maps, decoder, num_classes
        self.strides = maps.strides[-_MAPS:]
        self.classifier = nn.Conv2d(channels, num_classes, 1)
        self.name, self.arguments = "", dict[str, Any]()  # of the builder

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` (B, H, W) is True where a pixel belongs to the image, for images padded on the right and below to one
        size; only LaplacianFormer knows one."""
        height, width = images.shape[-2:]
        if not isinstance(self.maps.model, LaplacianFormer):  # which takes every size
            images = _filled_up(images, -height % self.strides[-1], -width % self.strides[-1])
        maps = list(self.maps(images, mask).values())[-_MAPS:]
        rows, columns = maps[-1].shape[-2:]
        for index, stride in enumerate(self.strides):
            finer = self.strides[-1] // stride
            below, right = finer * rows - maps[index].shape[-2], finer * columns - maps[index].shape[-1]
            maps[index] = _filled_up(maps[index], below, right)
        logits = self.classifier(self.decoder([maps[0], maps[0], *maps]))  # UPerNet skips two, for strides 1 and 2
        full = F.interpolate(logits, scale_factor=float(self.strides[0]), mode="bilinear", align_corners=False)
        return full[..., :height, :width]


def _filled_up(maps: Tensor, below: int, right: int) -> Tensor:
    return F.pad(maps, (0, right, 0, below))


def _builder(build: Callable[Arguments, Segmenter]) -> Callable[Arguments, Segmenter]:
    """Keep what a model is built with in `model.name` and `model.arguments`, for weights files."""

    @wraps(build)
    def built(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Segmenter:
        arguments = with_conversion(given_arguments(build, *args, **kwargs))
        make: Any = build  # by names: `options` are among them
        model: Segmenter = make(**arguments)
        weights = arguments.pop("weights")
        model.name, model.arguments = build.__name__, arguments
        if weights is not None:
            load_start(model, Path(weights), "segmentation", model.maps, _PER_CLASS)
        return model

    return built


@_builder
def semantic_fpn(
    backbone: str = "laplacianformer_tiny",
    num_classes: int = 150,
    weights: Path | str | None = None,
    *,
    backbone_args: Mapping[str, Any] | None = None,
    frozen_stages: int = 0,
    frozen_statistics: bool = False,
    channels: int = 256,
    width: int = 128,
    dropout: float = 0.1,
) -> Segmenter:
    """Semantic FPN (Kirillov et al., CVPR 2019), on the last four feature maps of the backbone.

    Args:
        backbone: a name of timm.create_model.
        num_classes: number of classes.
        weights: a weights file to start from: a classifier, for the backbone, or such a segmenter, for everything.
        backbone_args: of timm.create_model, for example {"drop_path_rate": 0.1} for stochastic depth.
        frozen_stages: number of stages of the backbone, from the first, that don't train.
        frozen_statistics: whitening and batch norm of the backbone keep the statistics that they have.
        channels: of the pyramid.
        width: channels of the branches that are added up; a multiple of 32, from 64 on, for their group norms.
        dropout: of whole channels, before the classifier.
    """
    maps = _feature_maps(backbone, backbone_args, frozen_stages, frozen_statistics)
    decoders = _decoders()
    if width < 64 or width % 32:  # a group of one channel of a map of one token has no variance
        raise ValueError(f"width={width}: expected a multiple of 32, from 64 on, for group norms of 32 groups")
    decoder = decoders.fpn.decoder.FPNDecoder(
        maps.channels[-_MAPS:], pyramid_channels=channels, segmentation_channels=width, dropout=dropout
    )
    return _initialised(Segmenter(maps, decoder, width, num_classes))


@_builder
def upernet(
    backbone: str = "laplacianformer_tiny",
    num_classes: int = 150,
    weights: Path | str | None = None,
    *,
    backbone_args: Mapping[str, Any] | None = None,
    frozen_stages: int = 0,
    frozen_statistics: bool = False,
    channels: int = 512,
) -> Segmenter:
    """UPerNet (Xiao et al., ECCV 2018): a pyramid with pooling over the whole image, on the last four feature maps.

    Its batch norms need batches of at least two images in training.

    Args:
        channels: of every layer of the decoder.

    The other arguments are those of `semantic_fpn`.
    """
    maps = _feature_maps(backbone, backbone_args, frozen_stages, frozen_statistics)
    decoder = _decoders().upernet.decoder.UPerNetDecoder([0, 0, *maps.channels[-_MAPS:]], decoder_channels=channels)
    return _initialised(Segmenter(maps, decoder, channels, num_classes))


BUILDERS: dict[str, Callable[..., Any]] = {"semantic_fpn": semantic_fpn, "upernet": upernet}


def parameter_groups(model: Segmenter, weight_decay: float = 0.05, layer_decay: float = 1.0) -> list[dict[str, Any]]:
    """Groups of parameters for an optimiser: no weight decay on norms and biases, and in the backbone a learning rate
    that shrinks by the factor `layer_decay` per layer towards the input (`lr_scale`, which timm's schedules apply)."""
    return backbone_groups(model, model.maps, weight_decay, layer_decay)


def _feature_maps(
    name: str, arguments: Mapping[str, Any] | None, frozen_stages: int, frozen_statistics: bool
) -> FeatureMaps:
    maps = FeatureMaps(name, arguments or {}, 1, 32, frozen_stages=frozen_stages, frozen_statistics=frozen_statistics)
    last = maps.strides[-_MAPS:]
    if len(last) < _MAPS or any(2 * fine != coarse for fine, coarse in pairwise(last)):
        raise ValueError(
            f"{name} has feature maps of strides {maps.strides}: expected four at the end, each of twice the stride of "
            "the one before"
        )
    return maps


def _decoders() -> Any:
    try:
        from segmentation_models_pytorch import decoders
    except ImportError:
        raise InputError(
            "segmentation needs segmentation_models_pytorch: pip install 'laplacianformer[segmentation]'"
        ) from None
    return decoders


def _initialised(model: Segmenter) -> Segmenter:
    """The decoder and the classifier with the random weights of their library; the backbone has its own."""
    from segmentation_models_pytorch.base import initialization

    initialization.initialize_decoder(model.decoder)
    initialization.initialize_head(model.classifier)
    return model
