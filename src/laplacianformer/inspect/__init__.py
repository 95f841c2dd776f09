"""Looking into a model: diagnosis of its attention, what it is worth, how well a conversion matches, and cost."""

from laplacianformer.inspect._attention_matrix import TokenAttention, attention_row, token_attention
from laplacianformer.inspect._branch import without_attention
from laplacianformer.inspect._cost import Cost, cost, costs
from laplacianformer.inspect._diagnose import Diagnosis, LayerDiagnosis, diagnose
from laplacianformer.inspect._matching import LayerMatch, Matching, compare_attention

__all__ = [
    "Cost",
    "Diagnosis",
    "LayerDiagnosis",
    "LayerMatch",
    "Matching",
    "TokenAttention",
    "attention_row",
    "compare_attention",
    "cost",
    "costs",
    "diagnose",
    "token_attention",
    "without_attention",
]
