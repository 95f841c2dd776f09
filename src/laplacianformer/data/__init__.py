"""Data sets and how they become batches."""

from laplacianformer.data.batch import NO_LABEL as NO_LABEL
from laplacianformer.data.batch import Batch as Batch
from laplacianformer.data.batch import Corrupt as Corrupt
from laplacianformer.data.loaders import Loaders as Loaders
from laplacianformer.data.loaders import open_loaders as open_loaders
from laplacianformer.data.order import mix as mix
from laplacianformer.data.order import seed_all as seed_all
