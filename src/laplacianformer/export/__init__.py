"""A trained classifier or segmenter for use without this package: ONNX, compiled packages, and folders for timm.

ONNX needs `pip install 'laplacianformer[export]'`: its modules are imported when they are used.
"""

from laplacianformer.export._card import write_folder
from laplacianformer.export._check import AccuracyChange, Difference, Runner, compare_accuracy, differences
from laplacianformer.export._exported import Exported, Format, export_model, tolerance
from laplacianformer.export._int8_layers import calibration_images
from laplacianformer.export._segmenter import export_segmenter, segmenter_differences
from laplacianformer.export._trace import ExportPrecision

__all__ = [
    "AccuracyChange",
    "Difference",
    "ExportPrecision",
    "Exported",
    "Format",
    "Runner",
    "calibration_images",
    "compare_accuracy",
    "differences",
    "export_model",
    "export_segmenter",
    "segmenter_differences",
    "tolerance",
    "write_folder",
]
