"""Small data sets: every image is decoded once, kept as bytes, and augmented a batch at a time."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer._util.errors import InputError
from laplacianformer.data._batch import NO_LABEL, Batch, Corrupt
from laplacianformer.data._images import to_input
from laplacianformer.data._indexed import Images
from laplacianformer.data._order import Order, mix


class Memory:
    """Images of one size as bytes (N, 3, size, size), and their labels.

    Args:
        model_input: what the model expects, as in a weights file: size, mean, std, interpolation, crop_pct.
        corrupt_limit: fraction of the images that may be unreadable, and are then left out.
    """

    def __init__(self, images: Images, model_input: dict[str, Any], corrupt_limit: float) -> None:
        resize = to_input(model_input, normalize=False)
        corrupt = Corrupt(corrupt_limit)
        pixels, targets = [], []
        for index in range(len(images)):
            try:
                image, target = images.read(index)
            except Exception as error:  # whatever a broken file makes a decoder raise
                line = f"{images.name(index)}: {error}"
                corrupt.add([line], len(images))
                continue
            pixels.append(resize(image))
            targets.append(target)
        if not pixels:
            raise InputError(f"none of the {len(images)} images can be read; the last: {line}")
        self.pixels, self.targets = torch.stack(pixels), torch.tensor(targets)
        self.mean = 255 * torch.tensor(model_input["mean"]).view(3, 1, 1)
        self.std = 255 * torch.tensor(model_input["std"]).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.pixels)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Bytes as the model expects them."""
        return (pixels.float() - self.mean) / self.std


class MemoryTraining:
    """Training batches from memory, with random flips and random crops after padding."""

    def __init__(self, memory: Memory, order: Order, *, flip: float, crop_padding: int) -> None:
        self.memory, self.order, self.flip, self.crop_padding = memory, order, flip, crop_padding

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from index `start` on. What is random in a sample depends on epoch and key alone."""
        generator = torch.Generator().manual_seed(mix(self.order.seed, epoch, 1))
        chance = torch.rand(len(self.memory) * self.order.repeats, 3, generator=generator)
        for keys in self.order.keys(epoch)[start:]:
            index = keys % len(self.memory)
            pixels = crop_and_flip(self.memory.pixels[index], chance[keys], flip=self.flip, padding=self.crop_padding)
            yield Batch(self.memory.normalised(pixels), self.memory.targets[index])


class MemoryEvaluation:
    """Evaluation batches of this process, in order; all processes have the same number of images."""

    def __init__(self, memory: Memory, batch_size: int, rank: int = 0, world: int = 1) -> None:
        self.memory, self.batch_size = memory, batch_size
        self.index = torch.arange(rank, -(-len(memory) // world) * world, world)

    def __iter__(self) -> Iterator[Batch]:
        for numbers in self.index.split(self.batch_size):
            index = numbers % len(self.memory)
            targets = torch.where(numbers < len(self.memory), self.memory.targets[index], NO_LABEL)
            yield Batch(self.memory.normalised(self.memory.pixels[index]), targets)


def crop_and_flip(pixels_bchw: Tensor, chance_b3: Tensor, *, flip: float, padding: int) -> Tensor:
    """A random crop after padding with black, and a random flip, by three random numbers in 0..1 per sample.

    flip: its probability. padding: pixels on each side.
    """
    size = pixels_bchw.shape[-1]
    padded = F.pad(pixels_bchw, (padding,) * 4)
    offsets = (chance_b3[:, :2] * (2 * padding + 1)).long()
    window = torch.arange(size)
    rows = offsets[:, 0, None] + window
    columns = offsets[:, 1, None] + window
    columns = torch.where(chance_b3[:, 2, None] < flip, columns.flip(1), columns)
    batch = torch.arange(len(padded))[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
