"""Augmentation of an image together with its label map. No step mixes labels: they are moved, repeated or left out, and
what is added is ignored."""

import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from laplacianformer.segmentation._labels import IGNORED, Array
from laplacianformer.segmentation._recipe import SegmentationAugment, SegmentationData

_CROPS = 10  # drawn until one class is not too large in it

# Photometric distortion as of the PVT line (PhotoMetricDistortion of mmsegmentation).
_BRIGHTNESS = 32  # of 255, added or subtracted at most
_CONTRAST = _SATURATION = (0.5, 1.5)  # range of the factor
_HUE = 0.1  # of the circle, in both directions: 36 degrees, or the 18 of 180 in which images of bytes have their hues

Sample = tuple[Tensor, Tensor, Tensor]  # bytes (3, height, width), indices of classes (height, width), size (2,)


class Augmentation:
    """A random scale, crop, flip and photometric distortion: called with an image and the indices of its classes.

    All samples have the size of the crop. A smaller image is in its upper left corner; the size of that part is the
    third value of a sample, and the rest is black and ignored.
    """

    def __init__(self, augment: SegmentationAugment, data: SegmentationData) -> None:
        self.augment, self.crop, self.short_side = augment, data.crop, data.short_side

    def __call__(self, image: Image.Image, indices_hw: Array) -> Sample:
        pixels, labels = tv_tensors.Image(F.pil_to_tensor(image)), tv_tensors.Mask(torch.from_numpy(indices_hw))
        pixels, labels = self._resized(pixels, labels)
        pixels, labels = self._cropped(pixels, labels)
        if torch.rand(()) < self.augment.flip:
            pixels, labels = F.horizontal_flip(pixels), F.horizontal_flip(labels)
        if self.augment.colour:
            pixels = _distorted(pixels, self.augment.colour)
        size = torch.tensor(labels.shape)
        right_and_below = [0, 0, self.crop[1] - labels.shape[1], self.crop[0] - labels.shape[0]]
        pixels, labels = F.pad(pixels, right_and_below), F.pad(labels, right_and_below, fill=IGNORED)
        return pixels.as_subclass(Tensor), labels.as_subclass(Tensor), size

    def _resized(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """To a random factor of the size, or of that with the wanted short side; labels by nearest neighbours."""
        factor = _between(*self.augment.scale)
        if self.short_side is not None:
            factor *= self.short_side / min(labels.shape)
        size = [max(1, round(factor * length)) for length in labels.shape]
        if size == list(labels.shape):
            return pixels, labels
        return F.resize(pixels, size, antialias=True), F.resize(labels, size, F.InterpolationMode.NEAREST_EXACT)

    def _cropped(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        height, width = (min(pair) for pair in zip(labels.shape, self.crop, strict=True))
        for _ in range(_CROPS):
            top = int(torch.randint(labels.shape[0] - height + 1, ()))
            left = int(torch.randint(labels.shape[1] - width + 1, ()))
            found = F.crop(labels, top, left, height, width)
            if _largest_fraction(found) <= self.augment.largest_class:
                break
        return F.crop(pixels, top, left, height, width), found


def _distorted(pixels: Tensor, probability: float) -> Tensor:
    """Random brightness, contrast, saturation and hue, each with this probability; contrast first or last.

    torchvision's RandomPhotometricDistort would also permute the channels, and could make a red sign blue. Contrast is
    a factor on the bytes, which torchvision calls brightness.
    """
    brightness, contrast, saturation, hue = (torch.rand(4) < probability).tolist()
    contrast_first = bool(torch.rand(()) < 0.5)
    factor = _between(*_CONTRAST)
    if brightness:
        added = round(_between(-_BRIGHTNESS, _BRIGHTNESS))
        pixels = (pixels.to(torch.int16) + added).clamp(0, 255).to(torch.uint8)
    if contrast and contrast_first:
        pixels = F.adjust_brightness(pixels, factor)
    if saturation:
        pixels = F.adjust_saturation(pixels, _between(*_SATURATION))
    if hue:
        pixels = F.adjust_hue(pixels, _between(-_HUE, _HUE))
    if contrast and not contrast_first:
        pixels = F.adjust_brightness(pixels, factor)
    return pixels


def _between(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def _largest_fraction(labels: Tensor) -> float:
    """Of the pixels that count, those of the most frequent class; 1 if none counts."""
    counts = labels.flatten().bincount(minlength=IGNORED + 1)[:IGNORED]
    return float(counts.max() / counts.sum()) if counts.any() else 1.0
