"""A trained classifier for use without this package: ONNX, compiled packages, and folders for timm.

ONNX needs `pip install 'laplacianformer[export]'`: its modules are imported when they are used.
"""

from laplacianformer.export.card import write_folder
from laplacianformer.export.check import AccuracyChange, Difference, compare_accuracy, differences
from laplacianformer.export.exported import Exported, export_model, tolerance

__all__ = [
    "AccuracyChange",
    "Difference",
    "Exported",
    "compare_accuracy",
    "differences",
    "export_model",
    "tolerance",
    "write_folder",
]
