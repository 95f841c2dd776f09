"""Looking into a model: diagnosis of its attention, what one token attends to, and cost."""

from laplacianformer.inspect._attention_matrix import TokenAttention, attention_row, token_attention
from laplacianformer.inspect._cost import Cost, cost, costs
from laplacianformer.inspect._diagnose import Diagnosis, LayerDiagnosis, diagnose

__all__ = [
    "Cost",
    "Diagnosis",
    "LayerDiagnosis",
    "TokenAttention",
    "attention_row",
    "cost",
    "costs",
    "diagnose",
    "token_attention",
]
