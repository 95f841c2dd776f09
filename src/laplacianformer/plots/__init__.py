"""Figures of training runs and of attention. They need matplotlib, and say so where it is missing."""

from laplacianformer.plots._attention import AttentionFigureRow, attention_colours, draw_attention
from laplacianformer.plots._figure import require_matplotlib
from laplacianformer.plots._training import draw_training

__all__ = ["AttentionFigureRow", "attention_colours", "draw_attention", "draw_training", "require_matplotlib"]
