"""Augmentation of an image together with its label map. No step mixes labels: they are moved, repeated or left out, and
what is added is ignored."""

import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from laplacianformer.segmentation._labels import IGNORED, Array
from laplacianformer.segmentation._recipe import SegmentationAugment, SegmentationData

_CROPS = 10  # drawn until one class is not too large in it

Sample = tuple[Tensor, Tensor, Tensor]  # bytes (3, height, width), indices of classes (height, width), size (2,)


class Augmentation:
    """A random scale, crop, flip and photometric distortion: called with an image and the indices of its classes.

    All samples have the size of the crop. A smaller image is in its upper left corner; the size of that part is the
    third value of a sample, and the rest is black and ignored.
    """

    def __init__(self, augment: SegmentationAugment, data: SegmentationData) -> None:
        self.augment, self.crop, self.short_side = augment, data.crop, data.short_side
        self.distort = v2.RandomPhotometricDistort(p=augment.colour)

    def __call__(self, image: Image.Image, indices_hw: Array) -> Sample:
        pixels, labels = tv_tensors.Image(F.pil_to_tensor(image)), tv_tensors.Mask(torch.from_numpy(indices_hw))
        pixels, labels = self._resized(pixels, labels)
        pixels, labels = self._cropped(pixels, labels)
        if torch.rand(()) < self.augment.flip:
            pixels, labels = F.horizontal_flip(pixels), F.horizontal_flip(labels)
        if self.augment.colour:
            pixels = self.distort(pixels)
        size = torch.tensor(labels.shape)
        right_and_below = [0, 0, self.crop[1] - labels.shape[1], self.crop[0] - labels.shape[0]]
        pixels, labels = F.pad(pixels, right_and_below), F.pad(labels, right_and_below, fill=IGNORED)
        return pixels.as_subclass(Tensor), labels.as_subclass(Tensor), size

    def _resized(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """To a random factor of the size, or of that with the wanted short side; labels by nearest neighbours."""
        low, high = self.augment.scale
        factor = low + (high - low) * float(torch.rand(()))
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


def _largest_fraction(labels: Tensor) -> float:
    """Of the pixels that count, those of the most frequent class; 1 if none counts."""
    counts = labels.flatten().bincount(minlength=IGNORED + 1)[:IGNORED]
    return float(counts.max() / counts.sum()) if counts.any() else 1.0
