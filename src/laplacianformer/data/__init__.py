"""Data sets and how they become batches. What reads recipes (`loaders` and training) is imported by name."""

from laplacianformer.data.batch import NO_LABEL as NO_LABEL
from laplacianformer.data.batch import Batch as Batch
from laplacianformer.data.batch import Corrupt as Corrupt
from laplacianformer.data.order import mix as mix
from laplacianformer.data.order import seed_all as seed_all
