"""The class of every pixel of one image: whole or in windows, at any size."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.transforms.v2.functional import resize

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import json_entry
from laplacianformer.inspect._finite import first_not_finite, is_finite

_MOST_NUMBERS = 1 << 24  # of logits that are resized at a time


@dataclass(frozen=True)
class Preparation:
    """What is done to an image before a segmenter sees it, and in which parts it sees it.

    Args:
        mean, std: of the pixels from 0 to 1, for normalisation.
        short_side: pixels that images are resized to; None: they stay as they are.
        window: side in pixels of the square windows that an image is seen in; None: it is seen whole.
        window_stride: pixels from one window to the next; None: two thirds of a window.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    short_side: int | None = None
    window: int | None = None
    window_stride: int | None = None

    def normalised(self, images: Tensor) -> Tensor:
        """Bytes (..., 3, H, W) as a segmenter expects them."""
        mean, std = (torch.tensor(part, device=images.device)[:, None, None] for part in (self.mean, self.std))
        return (images / 255 - mean) / std

    def as_json(self) -> str:
        """For the metadata of a file."""
        return json.dumps(asdict(self))


def preparation_of(path: Path, metadata: Mapping[str, str]) -> Preparation:
    """What the metadata of a weights file says, checked."""
    stated = json_entry(path, metadata, "input")
    try:
        mean, std = (tuple(float(number) for number in stated[key]) for key in ("mean", "std"))
        sides = [stated[key] for key in ("short_side", "window", "window_stride")]
        fits = len(mean) == len(std) == 3 and limits.usable_input((3, 1, 1), list(mean), list(std), 1.0)
        fits = fits and all(side is None or (type(side) is int and 1 <= side <= limits.MOST_SIDE) for side in sides)
        fits = fits and (sides[2] is None or (sides[1] is not None and sides[2] <= sides[1]))
    except (KeyError, TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise InputError(
            f"{path} has an input that can't be used: {limits.shown(stated)}. Expected mean and std of 3 channels, std "
            f"from {limits.STD_RANGE[0]}, and short_side, window and window_stride of at most {limits.MOST_SIDE} pixels"
        )
    return Preparation(mean, std, *sides)


@torch.inference_mode()
def find_classes(model: nn.Module, image: Tensor, preparation: Preparation) -> Tensor:
    """The index of the class of every pixel of an image (3, H, W) of bytes: (H, W) of uint8, on its device.

    Logits that are not finite are an InputError that names the layer.
    """
    size = image.shape[1:]
    if preparation.short_side is not None:
        factor = preparation.short_side / min(size)
        image = resize(image, [max(1, round(factor * length)) for length in size], antialias=True)
    images = preparation.normalised(image)[None]
    logits = _logits(model, images, preparation)[0].float()
    if not is_finite(logits):
        where = first_not_finite(model, images)
        raise InputError(f"the segmenter gives outputs that are not finite: {where}")
    return logits.argmax(0).byte() if logits.shape[1:] == size else _resized_classes(logits, size)


def _logits(model: nn.Module, images: Tensor, preparation: Preparation) -> Tensor:
    """Of the whole image, or the mean over the windows that a pixel is in."""
    height, width = images.shape[-2:]
    window = preparation.window
    if window is None or max(height, width) <= window:
        return model(images)
    stride = preparation.window_stride or max(1, 2 * window // 3)
    sums: Tensor | None = None
    counts = images.new_zeros(1, 1, height, width)
    for top in _starts(height, window, stride):
        for left in _starts(width, window, stride):
            part = ..., slice(top, top + window), slice(left, left + window)
            logits = model(images[part]).float()
            if sums is None:
                sums = logits.new_zeros(1, logits.shape[1], height, width)
            sums[part] += logits
            counts[part] += 1
    assert sums is not None
    return sums / counts


def _starts(length: int, window: int, stride: int) -> list[int]:
    """The first pixels of windows that cover a side; the last one ends with it."""
    last = max(0, length - window)
    return [*range(0, last, stride), last]


def _resized_classes(logits: Tensor, size: Sequence[int]) -> Tensor:
    """The classes after a bilinear resize of logits (C, h, w), by strips of rows: all logits could be gigabytes."""
    (classes, height, _), (rows, columns) = logits.shape, size
    found = torch.empty(rows, columns, dtype=torch.uint8, device=logits.device)
    strip = max(1, _MOST_NUMBERS // (classes * columns))
    for top in range(0, rows, strip):
        row = torch.arange(top, min(top + strip, rows), device=logits.device)
        position = ((row + 0.5) * (height / rows) - 0.5).clamp(0, height - 1)
        above = position.long()
        below, weight = (above + 1).clamp(max=height - 1), (position - above)[:, None]
        lines = torch.lerp(logits[:, above], logits[:, below], weight.expand(-1, logits.shape[2]))
        wide = nn.functional.interpolate(lines[None], (len(row), columns), mode="bilinear", align_corners=False)
        found[top : top + strip] = wide[0].argmax(0)
    return found
