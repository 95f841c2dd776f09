"""Linear-attention vision backbones with the Laplacian kernel."""

from laplacianformer import ops as ops
from laplacianformer.attention import LaplacianAttention as LaplacianAttention
from laplacianformer.attention import SoftmaxAttention as SoftmaxAttention
from laplacianformer.inspect.diagnose import diagnose as diagnose
from laplacianformer.model import LaplacianFormer as LaplacianFormer

__version__ = "0.1.0"
