"""Figures of trainings and of attention."""

from laplacianformer.plots.attention import AttentionRow as AttentionRow
from laplacianformer.plots.attention import attention_map as attention_map
from laplacianformer.plots.attention import colours as colours
from laplacianformer.plots.figure import require as require
from laplacianformer.plots.training import training_curve as training_curve
