"""Feature maps with a feature pyramid over them: what torchvision's detectors call a backbone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock

from laplacianformer.training._feature_maps import FeatureMaps, padding_mask


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
        return self.pyramid(self.maps(images, padding_of(images)))


class PaddingTransform(GeneralizedRCNNTransform):  # type: ignore[misc]
    """torchvision's resizing, normalisation and padding of images, which notes the sizes before the padding on the
    tensor of the batch: its detectors hand on nothing else."""

    def forward(self, images: list[Tensor], targets: Any = None) -> tuple[ImageList, Any]:
        found, targets = super().forward(images, targets)
        found.tensors.image_sizes = tuple(found.image_sizes)
        return found, targets


def padding_of(images: Tensor) -> Tensor | None:
    """Which pixels of a batch of `PaddingTransform` belong to an image, (B, H, W); None where nothing is padded."""
    sizes = getattr(images, "image_sizes", ())
    return padding_mask(torch.tensor(sizes, device=images.device), images.shape[-2:]) if sizes else None


def note_padding(model: Any) -> Any:
    """Let the backbone of a detector of torchvision know which pixels are padding."""
    old = model.transform
    model.transform = PaddingTransform(
        old.min_size, old.max_size, old.image_mean, old.image_std, size_divisible=old.size_divisible
    )
    return model
