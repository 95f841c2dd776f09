"""Trained weights in one safetensors file that describes itself."""

from laplacianformer.weights._description import describe
from laplacianformer.weights._file import Weights, load_weights, save_weights, stated_task

__all__ = ["Weights", "describe", "load_weights", "save_weights", "stated_task"]
