"""Looking into a model: diagnosis of its attention, what one token attends to, and cost."""

from laplacianformer.inspect.attention_matrix import TokenAttention, token_attention
from laplacianformer.inspect.cost import Cost
from laplacianformer.inspect.diagnose import Diagnosis, LayerDiagnosis, diagnose

__all__ = ["Cost", "Diagnosis", "LayerDiagnosis", "TokenAttention", "diagnose", "token_attention"]
