"""Linear-attention vision backbones with the Laplacian kernel."""

from laplacianformer._util import interrupted as _interrupted  # noqa: F401  first, for the imports that follow

# isort: split
from laplacianformer import ops
from laplacianformer._util.errors import InputError
from laplacianformer.attention import LaplacianAttention, SoftmaxAttention
from laplacianformer.inspect._diagnose import diagnose
from laplacianformer.model import LaplacianFormer
from laplacianformer.weights import load_weights, save_weights

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "LaplacianAttention",
    "LaplacianFormer",
    "SoftmaxAttention",
    "__version__",
    "diagnose",
    "load_weights",
    "ops",
    "save_weights",
]
