"""Figures of training runs and of attention. They need matplotlib, and say so where it is missing."""

from laplacianformer.plots.attention import AttentionFigureRow, attention_colours, draw_attention
from laplacianformer.plots.figure import require_matplotlib
from laplacianformer.plots.training import draw_training

__all__ = ["AttentionFigureRow", "attention_colours", "draw_attention", "draw_training", "require_matplotlib"]
