"""A trained model for use without this package: ONNX, compiled packages, and folders for timm.

ONNX needs `pip install 'laplacianformer[export]'`: its modules are imported when they are used.
"""

from laplacianformer.export._card import write_folder
from laplacianformer.export._check import AccuracyChange, Difference, Runner, compare_accuracy, differences
from laplacianformer.export._detector import (
    DetectorDifference,
    ExportedDetector,
    detector_differences,
    export_detector,
)
from laplacianformer.export._exported import Exported, Format, export_model, tolerance
from laplacianformer.export._int8_layers import calibration_images
from laplacianformer.export._onnx_library import onnx_library
from laplacianformer.export._segmenter import export_segmenter, segmenter_differences
from laplacianformer.export._trace import ExportPrecision

__all__ = [
    "AccuracyChange",
    "DetectorDifference",
    "Difference",
    "ExportPrecision",
    "Exported",
    "ExportedDetector",
    "Format",
    "Runner",
    "calibration_images",
    "compare_accuracy",
    "detector_differences",
    "differences",
    "export_detector",
    "export_model",
    "export_segmenter",
    "onnx_library",
    "segmenter_differences",
    "tolerance",
    "write_folder",
]
