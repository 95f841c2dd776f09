"""Looking into a model: diagnosis of its attention, what it is worth, what one token attends to, and cost."""

from laplacianformer.inspect._attention_matrix import TokenAttention, attention_row, token_attention
from laplacianformer.inspect._branch import without_attention
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
    "without_attention",
]
