"""A timm model as the backbone of a detector: feature maps of the wanted strides, and a feature pyramid over them."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import timm
import torch
from timm.layers import Format
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock

from laplacianformer.model import LaplacianFormer
from laplacianformer.training._frozen import freeze_stages, freeze_statistics


class FeatureMaps(nn.Module):
    """The last feature map of each stride from `least` to `most` pixels that a timm model has, as (B, C, H, W).

    Args:
        frozen_stages: number of feature maps, from the first, that don't train, with everything that they depend on: no
            gradients, no statistics.
        frozen_statistics: whitening and batch norm use their running statistics in training too, and don't update them.
    """

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any],
        least: int,
        most: int,
        *,
        frozen_stages: int = 0,
        frozen_statistics: bool = False,
    ) -> None:
        super().__init__()
        self.body, self.wanted = _create(name, arguments, least, most)
        info = self.body.feature_info
        self.strides = [info.reduction()[index] for index in self.wanted]
        self.channels = [info.channels()[index] for index in self.wanted]
        self.channels_last = getattr(self.body, "output_fmt", Format.NCHW) == Format.NHWC
        freeze_stages(self.model, info.module_name(), frozen_stages, name)
        if frozen_statistics:
            freeze_statistics(self.body)

    def forward(self, images: Tensor, mask: Tensor | None = None) -> "OrderedDict[str, Tensor]":
        """`mask` (B, H, W) is True where a pixel belongs to the image; only LaplacianFormer knows one."""
        if mask is not None and isinstance(self.model, LaplacianFormer):
            options = {"indices": self.body.out_indices, "norm": self.body.norm, "intermediates_only": True}
            maps: Any = self.model.forward_intermediates(images, mask=mask, **options)
        else:
            maps = self.body(images)
        chosen = [maps[index] for index in self.wanted]
        if self.channels_last:
            chosen = [features.permute(0, 3, 1, 2).contiguous() for features in chosen]
        return OrderedDict((str(level), features) for level, features in enumerate(chosen))

    @property
    def model(self) -> nn.Module:
        """The timm model itself, inside the wrapper that some have."""
        inner = getattr(self.body, "model", self.body)
        assert isinstance(inner, nn.Module)
        return inner


def _create(name: str, arguments: Mapping[str, Any], least: int, most: int) -> tuple[Any, list[int]]:
    """The model, without what comes after the last wanted feature map, and the indices of the wanted ones."""
    body: Any = timm.create_model(name, features_only=True, **arguments)
    found = body.feature_info.reduction()
    wanted = [
        index for index, stride in enumerate(found) if least <= stride <= most and stride not in found[index + 1 :]
    ]
    if not wanted:
        raise ValueError(f"{name} has feature maps of strides {found}: expected one from {least} to {most}")
    if wanted[-1] < len(found) - 1:
        taken = tuple(body.feature_info.out_indices[: wanted[-1] + 1])
        body = timm.create_model(name, features_only=True, **{**arguments, "out_indices": taken})
    return body, wanted


class FeaturePyramid(nn.Module):
    """Feature maps, and torchvision's feature pyramid network over them: what its detectors call a backbone.

    torchvision pads images to one size and hands on the pixels alone; `PaddingTransform` says which are padding.
    """

    def __init__(
        self, maps: FeatureMaps, channels: int, extra: ExtraFPNBlock, norm: Callable[[int], nn.Module] | None
    ) -> None:
        super().__init__()
        self.maps, self.out_channels = maps, channels
        self.pyramid = FeaturePyramidNetwork(maps.channels, channels, extra, norm)

    def forward(self, images: Tensor) -> Any:
        return self.pyramid(self.maps(images, padding_mask(images)))


class PaddingTransform(GeneralizedRCNNTransform):  # type: ignore[misc]
    """torchvision's resizing, normalisation and padding of images, which notes the sizes before the padding on the
    tensor of the batch: its detectors hand on nothing else."""

    def forward(self, images: list[Tensor], targets: Any = None) -> tuple[ImageList, Any]:
        found, targets = super().forward(images, targets)
        found.tensors.image_sizes = tuple(found.image_sizes)
        return found, targets


def padding_mask(images: Tensor) -> Tensor | None:
    """Which pixels of a batch of `PaddingTransform` belong to an image, (B, H, W); None where nothing is padded."""
    sizes, whole = getattr(images, "image_sizes", ()), tuple(images.shape[-2:])
    if all(tuple(size) == whole for size in sizes):
        return None
    heights, widths = (torch.tensor(side, device=images.device) for side in zip(*sizes, strict=True))
    rows, columns = (torch.arange(length, device=images.device) for length in whole)
    return (rows < heights[:, None])[:, :, None] & (columns < widths[:, None])[:, None, :]


def note_padding(model: Any) -> Any:
    """Let the backbone of a detector of torchvision know which pixels are padding."""
    old = model.transform
    model.transform = PaddingTransform(
        old.min_size, old.max_size, old.image_mean, old.image_std, size_divisible=old.size_divisible
    )
    return model
