"""Large data sets: training images are decoded and augmented by worker processes as they are needed."""

from collections.abc import Callable

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from laplacianformer.data._batch import Batch, Sample, collate
from laplacianformer.data._indexed import Images
from laplacianformer.data._order import Order, mix, seed_all
from laplacianformer.data._training import EpochBatches, read_or_neighbour

Transform = Callable[[Image.Image], Tensor]  # augments an image and returns what the model expects, (3, size, size)


class TrainingImages(Dataset[Sample]):
    """Augmented images by (epoch, key), a black one where none can be read. What is random in a sample depends on these
    two alone."""

    def __init__(self, images: Images, transform: Transform, size: int, seed: int) -> None:
        self.images, self.transform, self.size, self.seed = images, transform, size, seed

    def __getitem__(self, epoch_and_key: tuple[int, int]) -> Sample:
        epoch, key = epoch_and_key
        found, corrupt = read_or_neighbour(self.images, key)
        if found is None:
            return torch.zeros(3, self.size, self.size), 0, corrupt
        image, target = found
        seed_all(mix(self.seed, epoch, key, 3))
        return self.transform(image), target, corrupt


def stream_training(images: Images, order: Order, transform: Transform, size: int, workers: int) -> EpochBatches[Batch]:
    """Training batches from worker processes."""
    return EpochBatches(TrainingImages(images, transform, size, order.seed), order, collate, workers)
