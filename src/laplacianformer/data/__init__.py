"""Data sets and how they become batches: decoding, sources, order, augmentation. Knows no recipe and no task."""

from laplacianformer.data._batch import NO_LABEL, Batch, Corrupt
from laplacianformer.data._order import mix, seed_all
from laplacianformer.data._sources import Source, open_images

__all__ = ["NO_LABEL", "Batch", "Corrupt", "Source", "mix", "open_images", "seed_all"]
